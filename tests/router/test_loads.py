"""Counts that router processes share: real processes, one of them killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.gateway.options import MAX_WORKERS
from exaslurm.registry.replica import Replica
from exaslurm.router import loads as loads_module
from exaslurm.router.loads import COLUMNS, NO_SLOT, ROWS, Loads, loads_path
from exaslurm.router.reweigh import Weigher
from exaslurm.router.table import Table
from tests.tools.fleet import wait_for

IDS = [f"c{cell:03d}-r{replica:04d}" for cell in range(4) for replica in range(8)]

OTHER = """
import sys
from pathlib import Path
from exaslurm.router.loads import Loads
loads = Loads.open(Path(sys.argv[1]), sys.argv[2].split(","))
for line in sys.stdin:
    word, *rest = line.split()
    if word == "set":
        loads.mine[loads.slots[rest[0]]] = int(rest[1])
    elif word == "retain":
        loads.retain(rest)
    elif word == "sum":
        print(loads.others()[loads.slots[rest[0]]], flush=True)
        continue
    elif word == "close":
        loads.close()
    print("done", flush=True)
"""


class Other:
    """Another process with a column of the same table."""

    def __init__(self, path: Path, ids: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path), ",".join(ids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.do("ready")

    def do(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(20)
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "loads"


@pytest.fixture
def loads(path: Path) -> Iterator[Loads]:
    with contextlib.closing(Loads.open(path, IDS)) as mine:
        yield mine


@pytest.fixture
def other(path: Path, loads: Loads) -> Iterator[Other]:
    process = Other(path, list(reversed(IDS)))
    yield process
    if process.process.poll() is None:
        process.kill()


def others_at(loads: Loads, ident: str) -> int:
    count: int = loads.others()[loads.slots[ident]]
    return count


def test_each_sees_what_the_others_have(loads: Loads, other: Other) -> None:
    other.do("set", IDS[5], 7)
    loads.mine[loads.slots[IDS[5]]] = 3
    loads.mine[loads.slots[IDS[6]]] = 70_000
    assert others_at(loads, IDS[5]) == 7  # not its own 3
    assert sum(loads.others()) == 7
    assert other.do("sum", IDS[5]) == "3"
    assert other.do("sum", IDS[6]) == "70000"
    other.do("set", IDS[5], 0)
    assert sum(loads.others()) == 0


def test_the_counts_of_a_killed_process_go(path: Path, loads: Loads, other: Other) -> None:
    other.do("set", IDS[0], 12)
    assert others_at(loads, IDS[0]) == 12
    other.kill()
    wait_for(lambda: others_at(loads, IDS[0]) == 0, timeout_s=3)
    # Its column is used again, and empty.
    again = Other(path, IDS)
    try:
        again.do("set", IDS[1], 1)
        wait_for(lambda: others_at(loads, IDS[1]) == 1, timeout_s=3)
        assert sum(loads.others()) == 1
    finally:
        again.kill()


def test_columns_of_killed_processes_are_used_again(path: Path) -> None:
    pids = set()
    for _ in range(3):
        process = Other(path, IDS)
        process.do("set", IDS[0], 5)
        pids.add(process.process.pid)
        process.kill()
    with contextlib.closing(Loads.open(path, IDS)) as loads:
        assert sum(loads.others()) == 0
        owners = [pid for pid in loads._owners[::2] if pid]
        assert owners == [os.getpid()]


def test_what_could_not_be_shared_for_want_of_the_lock_is_soon(path: Path, loads: Loads) -> None:
    weigher = Weigher(loads)
    table = Table()
    replica = Replica(
        id="new",
        cell="c",
        model="m",
        served_names=("m",),
        url="http://127.0.0.1:1",
        node="n",
        ready=True,
    )
    table.update([replica])
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        weigher.retain(table.targets)
        weigher.share()
        assert "new" not in loads.slots
    (target,) = table.targets
    target.outstanding = 7
    weigher.share()
    assert loads.mine[loads.slots["new"]] == 7


def test_every_worker_may_be_replaced_twice_at_a_time(path: Path) -> None:
    assert COLUMNS >= 3 * MAX_WORKERS
    assert loads_module._OWNERS_AT + 16 * COLUMNS <= loads_module._IDS_AT


def test_replicas_come_and_go(loads: Loads, other: Other) -> None:
    before = dict(loads.slots)
    loads.mine[before[IDS[0]]] = 9
    kept = IDS[1:]
    slots = loads.retain([*kept, "new"])
    assert {ident: slots[ident] for ident in kept} == {ident: before[ident] for ident in kept}
    # The other one still has the first: its row is nobody else's, and my count left it.
    assert slots["new"] not in before.values()
    assert other.do("sum", IDS[0]) == "0"
    other.do("retain", *kept, "new")
    other.do("set", "new", 4)
    assert others_at(loads, "new") == 4
    # Nobody has the first any more: its row is free.
    assert loads.retain([*kept, "new", "newer"])["newer"] == before[IDS[0]]
    assert others_at(loads, "newer") == 0


def test_more_replicas_than_rows_are_not_shared_but_harmless(path: Path) -> None:
    ids = [f"r{number}" for number in range(ROWS + 10)]
    with contextlib.closing(Loads.open(path, ids)) as loads:
        assert sum(slot == NO_SLOT for slot in loads.slots.values()) == 11
        loads.mine[loads.slots[ids[-1]]] = 5
        assert sum(loads.others()) == 0
        # A row is free again: who had none gets it.
        slots = loads.retain(ids[1:])
        assert sum(slot == NO_SLOT for slot in slots.values()) == 10


def test_the_last_one_removes_the_file(path: Path) -> None:
    one = Loads.open(path, IDS)
    other = Other(path, IDS)
    other.do("sum", IDS[0])
    one.close()
    assert path.exists()
    other.do("close")
    assert not path.exists()
    other.kill()


def test_it_is_private(path: Path, loads: Loads) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(StateError, match="not this user's alone"):
        Loads.open(path, IDS)


@pytest.mark.parametrize("content", [b"x", b"something else" * 1000])
def test_a_strange_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StateError, match="another version"):
        Loads.open(path, IDS)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="cannot open"):
        Loads.open(path, IDS)


def test_path_is_in_a_private_directory() -> None:
    path = loads_path("some", "name")
    assert path == loads_path("some", "name") != loads_path("some", "other")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_is_quick_at_full_size(path: Path) -> None:
    ids = [f"c{number // 192:03d}-r{number % 192:04d}" for number in range(3072)]
    with contextlib.closing(Loads.open(path, ids)) as loads:
        # Seven more columns as those of living processes.
        ticks = loads._owners[1]
        for column in range(1, 8):
            loads._owners[2 * column + 1] = ticks
            loads._owners[2 * column] = os.getpid()
        loads.others()
        times = []
        for _ in range(9):
            begun = time.perf_counter()
            loads.others()
            times.append(time.perf_counter() - begun)
        assert sorted(times)[4] < 0.002
        for column in range(1, 8):
            loads._owners[2 * column] = 0
