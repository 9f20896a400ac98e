"""What submit wrote down, read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.submit.records import read_submissions


def test_a_list_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    generation = RunDir(tmp_path / "hello").generation(1)
    assert read_submissions(generation) == {}
    with pytest.raises(StateError, match="cannot list"):
        read_submissions(generation, must_exist=True)
    generation.submissions.parent.mkdir(parents=True, exist_ok=True)
    generation.submissions.write_text("no directory")
    with pytest.raises(StateError, match="cannot list"):
        read_submissions(generation)
    damaged: list[StateError] = []
    assert read_submissions(generation, damaged=damaged.append) == {}
    assert len(damaged) == 1
