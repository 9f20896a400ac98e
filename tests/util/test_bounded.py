"""Work that a hung file system cannot hold up for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exaslurm.api import locate
from exaslurm.errors import StateError
from exaslurm.util.bounded import within


def test_a_hung_file_system_costs_a_bounded_time() -> None:
    with pytest.raises(StateError, match="takes longer than 0 s"):
        within(0.05, lambda: time.sleep(0.5), "reading x")


def test_errors_of_bounded_work_come_through() -> None:
    def work() -> None:
        raise StateError("full")

    with pytest.raises(StateError, match="full"):
        within(1, work, "reading x")


def test_a_deployment_is_looked_for_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "FILES_TIMEOUT_S", 0.05)
    monkeypatch.setattr(locate, "state_roots", lambda *_, **__: time.sleep(0.5))
    with pytest.raises(StateError, match="looking for deployment 'hello' takes longer than"):
        locate.find_run_dir("hello", {"HOME": str(tmp_path)})
