"""The whole examination."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from exaslurm.cli.main import run
from exaslurm.doctor.run import examine
from exaslurm.site.load import load_site


def test_a_site_without_slurm_asks_no_slurm(tmp_path: Path) -> None:
    environ = {**os.environ, "EXASLURM_HOME": str(tmp_path), "PATH": str(tmp_path)}
    report = examine(load_site("local", environ), environ, python=sys.executable)
    names = [check.name for check in report.checks]
    assert report.checks[0].outcome == "skip"
    assert "slurm commands" not in names
    assert {"state directory", "ports", "name resolution"} <= set(names)
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_commands_the_rest_is_still_checked(tmp_path: Path) -> None:
    environ = {**os.environ, "EXASLURM_HOME": str(tmp_path), "PATH": str(tmp_path)}
    report = examine(load_site("generic", environ), environ, python=sys.executable)
    assert (report.checks[0].name, report.checks[0].outcome) == ("slurm commands", "fail")
    assert "state directory" in [check.name for check in report.checks]


@pytest.mark.parametrize("as_json", [False, True])
def test_every_failure_has_a_remedy(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EXASLURM_HOME", "/sys/kernel")
    monkeypatch.setenv("HOME", str(tmp_path))
    code = run(["doctor", "--site", "local", *(["--json"] if as_json else [])])
    out = capsys.readouterr().out
    assert code == 6
    if as_json:
        report = json.loads(out)
        assert report["schema"] == "exaslurm/doctor/1"
        bad = [check for check in report["checks"] if check["outcome"] in ("warn", "fail")]
        assert bad
        assert all(check["remedy"] for check in bad)
    else:
        assert "fail  state directory" in out
        assert "remedy: " in out
