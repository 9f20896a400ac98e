"""The whole examination of a login node."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from exaslurm.cli.main import run
from exaslurm.doctor.login import check_proxy, examine_login
from exaslurm.doctor.model import HostReport
from exaslurm.site.load import load_site


def examined(site: str, tmp_path: Path) -> HostReport:
    environ = {**os.environ, "EXASLURM_HOME": str(tmp_path), "PATH": str(tmp_path)}
    return examine_login(load_site(site, environ), environ, python=sys.executable)


def test_a_site_without_slurm_asks_no_slurm(tmp_path: Path) -> None:
    report = examined("local", tmp_path)
    first = report.checks[0]
    assert (first.id, first.outcome) == ("slurm.commands", "skip")
    assert {"storage.state", "ports.free", "net.names"} <= {check.id for check in report.checks}
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_commands_the_rest_is_still_checked(tmp_path: Path) -> None:
    report = examined("generic", tmp_path)
    assert (report.checks[0].id, report.checks[0].outcome) == ("slurm.commands", "fail")
    assert "storage.state" in [check.id for check in report.checks]


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
        assert report["schema"] == "exaslurm/doctor/2"
        (host,) = report["hosts"]
        bad = [check for check in host["checks"] if check["outcome"] in ("warn", "fail")]
        assert len(bad) == report["failed"] + report["warned"]
        assert all(check["remedy"] for check in bad)
    else:
        assert "fail  storage.state" in out
        assert "remedy: " in out


@pytest.mark.parametrize(
    ("environ", "outcome"),
    [
        ({}, "skip"),
        ({"http_proxy": "http://proxy:3128"}, "warn"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "localhost,.cluster"}, "pass"),
    ],
)
def test_web_proxies(environ: dict[str, str], outcome: str) -> None:
    assert check_proxy(environ).outcome == outcome
