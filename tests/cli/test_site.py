"""``exaslurm site`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of site configs that is looked at first."""
    directory = tmp_path / "sites"
    directory.mkdir()
    monkeypatch.setenv("EXASLURM_SITE_CONFIG", str(directory))
    return directory


def test_show_tells_what_is_not_verified(exaslurm: Run) -> None:
    out = exaslurm("site", "show", "perlmutter").out
    assert out.startswith("# not verified on the machine: interface (")
    assert "constraint: gpu&hbm80g" in out
    shown = json.loads(exaslurm("site", "show", "perlmutter", "--json").out)
    assert shown["node_kinds"]["gpu"]["account_suffix"] == "_g"


def test_list_names_the_centres(exaslurm: Run) -> None:
    out = exaslurm("site", "list").out
    assert "frontier" in out
    assert "Perlmutter, NERSC (US)" in out


def test_check(exaslurm: Run, own: Path, tmp_path: Path) -> None:
    (own / "bad.yaml").write_text("schema: exaslurm/site/v1\nname: bad\nnode_kinds: {}\n")
    scripts = tmp_path / "out"
    done = exaslurm("site", "check", "vista", "bad", "--output", scripts)
    assert done.code == 2
    assert done.out.startswith("vista: ok (12 scripts")
    assert "  not verified on the machine: container (not found)" in done.out
    assert "bad: 1 problem(s)\n  " in done.out
    assert "node_kinds: must have at least 1 item(s)" in done.out
    header = (scripts / "vista" / "gh-single-none.sbatch").read_text()
    assert "#SBATCH --partition=gh\n" in header
    assert "--mem" not in header
    report = json.loads(exaslurm("site", "check", "vista", "bad", "--json").out)
    assert report["schema"] == "exaslurm/site-check/2"
    assert [site["valid"] for site in report["sites"]] == [True, False]


def test_check_wants_names_or_all(exaslurm: Run) -> None:
    assert "give the names of sites, or --all" in exaslurm("site", "check").err
    assert exaslurm("site", "check", "lab", "--all").code == 2


def test_draft_without_slurm(exaslurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = exaslurm("site", "draft", "mine")
    assert done.code == 4
    assert "cannot run 'scontrol' here" in done.err


def test_submit_repeats_what_is_not_verified(
    exaslurm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exaslurm.rundir import RunDir
    from exaslurm.submit import submit as module

    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema: exaslurm/v1\ndeployment: hello\nsite: jupiter\naccount: p1\n"
        "models: [{name: m, source: {path: /models/m}}]\n"
    )

    def submitted(path: Path, **options: Any) -> module.SubmitResult:
        return module.SubmitResult(
            run_dir=RunDir(tmp_path / "hello"),
            generation=1,
            plan=module.make_plan_for(path, environ=options["environ"]),
            submissions=(),
            attached=False,
        )

    monkeypatch.setattr(module, "submit", submitted)
    done = exaslurm("submit", spec)
    assert done.code == 0
    assert "note: site jupiter: not confirmed on the machine: slurm.memory, slurm.gres" in done.err
