"""Where the run directory is, and what it is called."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.scale import Scale
from exaslurm.errors import DeploymentError, StateError
from exaslurm.rundir import GenerationDir, RunDir, state_root


def test_the_users_choice_wins_then_the_sites_then_xdg() -> None:
    everything = {"EXASLURM_HOME": "/e", "XDG_STATE_HOME": "/x", "HOME": "/h"}
    assert state_root(everything, "/s") == Path("/e/exaslurm")
    del everything["EXASLURM_HOME"]
    assert state_root(everything, "/s") == Path("/s/exaslurm")
    assert state_root(everything, None) == Path("/x/exaslurm")
    assert state_root({"HOME": "/h"}, None) == Path("/h/.local/state/exaslurm")


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"EXASLURM_HOME": "state", "HOME": "/h"}, "/cwd/state"),
        ({"EXASLURM_HOME": "~/state", "HOME": "/h"}, "/h/state"),
        ({"XDG_STATE_HOME": "x", "HOME": "/h"}, "/cwd/x"),
        ({"HOME": "h"}, "/cwd/h/.local/state"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_it_is_absolute_whatever_the_environment(
    environ: dict[str, str], place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Without HOME: the one in the user database.
    base = place or f"{pwd.getpwuid(os.getuid()).pw_dir}/.local/state"
    assert state_root(environ, None) == Path(base.replace("/cwd", str(tmp_path))) / "exaslurm"


@pytest.mark.parametrize("name", ["/a\nb", "/a\tb", os.fsdecode(b"/a\xe9"), "/a\x1b[31m"])
def test_directories_that_no_script_can_name(name: str) -> None:
    with pytest.raises(StateError, match="cannot be used"):
        state_root({"EXASLURM_HOME": name, "HOME": "/h"}, None)


@pytest.mark.parametrize("name", ["/a b", "/ünï-中", "/q'\"$(x)", "/a;b"])
def test_directories_with_odd_names(name: str) -> None:
    assert state_root({"EXASLURM_HOME": name, "HOME": "/h"}, None) == Path(name) / "exaslurm"


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert state_root({"EXASLURM_HOME": "/e", "HOME": "/h"}, None) == Path("/e/exaslurm")
    with pytest.raises(StateError, match="relative to a directory that is gone"):
        state_root({"EXASLURM_HOME": "state", "HOME": "/h"}, None)


def test_an_unknown_deployment_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError) as raised:
        RunDir.of(tmp_path / "none", "a").require()
    assert "there are none" in str(raised.value.remedy)
    RunDir.of(tmp_path, "b").make()
    RunDir.of(tmp_path, "a").make()
    with pytest.raises(DeploymentError, match="no deployment 'c'") as raised:
        RunDir.of(tmp_path, "c").require()
    assert raised.value.remedy == "known deployments: a, b"
    assert RunDir.of(tmp_path, "a").require().deployment == "a"


def test_generations_count_up(tmp_path: Path) -> None:
    run_dir = RunDir.of(tmp_path, "a")
    assert run_dir.generations() == []
    assert run_dir.latest() is None
    for number in (1, 2, 10):
        run_dir.generation(number).make(("c000",))
    (run_dir.path / "gen" / "notes").mkdir()
    assert run_dir.generations() == [1, 2, 10]
    latest = run_dir.latest()
    assert latest is not None
    assert latest.number == 10


def test_every_directory_is_private(tmp_path: Path) -> None:
    run_dir = RunDir.of(tmp_path / "state", "a")
    run_dir.make()
    run_dir.generation(1).make(("c000", "c001"))
    for path in [run_dir.path, *run_dir.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_a_rendered_directory_has_no_number(tmp_path: Path) -> None:
    assert GenerationDir(tmp_path / "by-hand").number == 0


def test_the_wanted_generation_is_not_always_the_newest(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "hello")
    assert run_dir.current() is None
    run_dir.make()
    assert run_dir.current() is None
    for number in (1, 2):
        run_dir.generation(number).make(())
    assert run_dir.current() == run_dir.generation(2)
    run_dir.desired.write_text('{"run": true, "generation": 1}')
    assert run_dir.current() == run_dir.generation(1)
    run_dir.desired.write_text('{"run": true, "generation": 7}')  # its files were removed
    assert run_dir.current() == run_dir.generation(2)


def test_a_file_system_that_is_away_says_nothing(tmp_path: Path) -> None:
    """No file means that nothing is said; no directory means that nothing is known."""
    run_dir = RunDir(tmp_path / "hello")
    run_dir.path.mkdir()
    assert run_dir.read_scale() is None
    assert run_dir.read_rollout() is None
    run_dir.scale.write_text(dumps(Scale(replicas={"m:base": 2})))
    assert run_dir.read_scale() == Scale(replicas={"m:base": 2})
    run_dir.scale.unlink()
    run_dir.path.rmdir()
    for read in (run_dir.read_scale, run_dir.read_rollout):
        with pytest.raises(StateError, match="mounted"):
            read()
