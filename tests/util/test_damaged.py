"""Damaged files of the run directory: what is wrong with one is said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core import codec
from exaslurm.core.submission import Desired
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text


def test_a_missing_file_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        read_text(tmp_path / "plan.json")
    assert str(caught.value) == f"cannot read {tmp_path}/plan.json: No such file or directory"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"{}\x80")
    with pytest.raises(StateError, match=r"plan.json is damaged: not text \(byte 2\)"):
        read_text(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\x80", b"[" * 100_000, b"[]", b"7", b"{}", b'{"run": 1, "generation": 1}']
)
def test_a_damaged_state_file_names_itself_and_the_remedy(tmp_path: Path, raw: bytes) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.desired.write_bytes(raw)
    with pytest.raises(StateError) as caught:
        run_dir.read_desired()
    assert str(run_dir.desired) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_wanted(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.read_desired() is None
    wanted = Desired(run=False, generation=3)
    run_dir.desired.write_text(codec.dumps(wanted))
    assert run_dir.read_desired() == wanted
