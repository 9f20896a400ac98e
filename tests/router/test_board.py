"""Several processes answer for each other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.router.board import Board
from exaslurm.router.call import Call
from exaslurm.router.exposition import Family, dump, render
from exaslurm.router.metrics import Metrics
from tests.router.test_metrics import parsed, total

ROUTE = "/v1/completions"

WORKER = """
import sys
from pathlib import Path
from exaslurm.router.board import Board
from exaslurm.router.call import Call
from exaslurm.router.metrics import Metrics
board, metrics = Board(Path(sys.argv[1])), Metrics([sys.argv[2]])
for line in sys.stdin:
    metrics.begun += 2
    call = Call(sys.argv[2], b"x", 0.0)
    call.status = 200
    metrics.done(call)
    board.post(metrics.snapshot())
    print("posted", flush=True)
"""


class Worker:
    """A process with a place on the board; each ``count`` is one more request, and one that
    stays under way."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory), ROUTE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.count()

    def count(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "posted\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(tmp_path / "board"))
        return workers[-1]

    yield make
    for one in workers:
        if one.process.poll() is None:
            one.end()


def seen(board: Board) -> tuple[float, float]:
    """Requests that are over, and those under way."""
    samples = parsed(render(board.total()))
    return total(samples, "requests_total"), total(samples, "in_flight")


def test_they_add_up_and_outlive_their_process(
    tmp_path: Path, worker: Callable[[], Worker]
) -> None:
    one, two = worker(), worker()
    board = Board(tmp_path / "board")
    assert seen(board) == (2, 2)
    two.count()
    assert seen(board) == (3, 3)
    one.end()
    assert seen(board) == (3, 2)  # what it had at hand is gone, what it counted is not
    three = worker()  # which puts away what one has left
    assert len(list((tmp_path / "board").glob("*.json"))) == 3
    assert seen(board) == (4, 3)
    two.end()
    three.end()
    assert seen(board) == (4, 0)
    # Nobody is left who could have been asked: a router that starts now starts from 0.
    worker()
    assert seen(board) == (1, 1)


def test_own_figures_are_seen_at_once(tmp_path: Path) -> None:
    board, metrics = Board(tmp_path / "board"), Metrics([ROUTE])
    for number in range(3):
        call = Call(ROUTE, b"x", 0.0)
        metrics.begun += 1
        metrics.done(call)
        board.post(metrics.snapshot())
        assert seen(board) == (number + 1, 0)
    assert render(board.total()) == metrics.render()


def test_a_process_that_stands_still_stops_no_other(tmp_path: Path) -> None:
    board, metrics = Board(tmp_path / "board"), Metrics([ROUTE])
    board.post(metrics.snapshot())
    fd = os.open(tmp_path / "board" / ".lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        began_s = time.monotonic()
        assert seen(board) == (0, 0)
        Board(tmp_path / "board")
        assert time.monotonic() - began_s < 2
    finally:
        os.close(fd)


def test_private(tmp_path: Path) -> None:
    os.umask(0o022)
    Board(tmp_path / "board").post(dump([]))
    assert (tmp_path / "board").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "board").iterdir()} == {0o600}


def test_of_another_version_is_left_out(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    board.post(dump([Family("x", "gauge", "", samples=[((), (1,))])]))
    (tmp_path / "board" / "1-1.json").write_bytes(b'{"schema": "exaslurm/metrics/9"}')
    assert [family.name for family in board.total()] == ["x"]


def test_no_room(tmp_path: Path) -> None:
    (tmp_path / "board").write_text("in the way")
    with pytest.raises(StateError, match="board"):
        Board(tmp_path / "board")
