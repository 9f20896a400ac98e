"""Figures of several processes: real ones, living, ended and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.gateway.figures import Figures, fold, own_directory, remove_directory
from exaslurm.router.exposition import Family, dump, load

WRITER = """
import sys
from pathlib import Path
from exaslurm.gateway.figures import Figures
own = Figures(Path(sys.argv[1]))
own.write(sys.argv[2].encode(), last=len(sys.argv) > 3)
print("written", flush=True)
sys.stdin.read()
"""


def counts(number: int) -> bytes:
    gauge = Family("waiting", "gauge", "help", samples=[((), (number,))])
    return dump([Family("requests_total", "counter", "help", samples=[((), (number,))]), gauge])


class Writer:
    """A process that has written its figures."""

    def __init__(self, directory: Path, number: int, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), counts(number).decode(), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"written\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def test_older_figures_do_not_replace_newer_ones(tmp_path: Path) -> None:
    """Two threads write: the one that answers, and the one that does so every second."""
    mine = Figures(tmp_path)
    mine.write(counts(2), taken_s=2.0)
    mine.write(counts(1), taken_s=1.0)
    assert Figures(tmp_path).read() == ([counts(2)], [])
    mine.write(counts(3), taken_s=3.0)
    assert Figures(tmp_path).read() == ([counts(3)], [])


def test_living_ended_and_killed_processes(tmp_path: Path) -> None:
    mine = Figures(tmp_path)
    mine.write(counts(1))
    living, leaving, killed = Writer(tmp_path, 2), Writer(tmp_path, 3, "last"), Writer(tmp_path, 4)
    try:
        killed.kill()
        live, ended = mine.read()
        assert live == [counts(2)]
        assert sorted(ended) == [counts(3), counts(4)]
        fold(tmp_path)
        live, ended = mine.read()
        assert live == [counts(2)]
        (total,) = ended
        assert load(total) == [Family("requests_total", "counter", "help", (), [((), (7,))])]
        again = Writer(tmp_path, 5, "last")
        again.kill()
        fold(tmp_path)
        (total,) = mine.read()[1]
        assert load(total)[0].samples == [((), (12,))]
        assert len(list(tmp_path.iterdir())) == 3
    finally:
        living.kill()
        leaving.kill()


def test_a_process_that_becomes_itself_anew_keeps_its_counts(tmp_path: Path) -> None:
    before = Figures(tmp_path)
    before.write(counts(1), last=True)
    after = Figures(tmp_path)
    after.write(counts(2))
    assert after.read() == ([], [counts(1)])


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1-2-x.ended").write_bytes(b"of another version")
    Figures(tmp_path).write(counts(3), last=True)
    fold(tmp_path)
    (total,) = Figures(tmp_path).read()[1]
    assert load(total)[0].samples == [((), (3,))]


def test_the_directory_is_that_of_the_process() -> None:
    own = own_directory()
    assert own is not None
    assert own == own_directory()
    remove_directory(own)
    assert not own.exists()
    with pytest.raises(StateError):
        Figures(own).read()
    with pytest.raises(StateError):
        Figures(own).write(b"x")
