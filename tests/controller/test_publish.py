from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path

import pytest

from exaslurm.controller import publish
from exaslurm.controller.publish import Publisher
from exaslurm.core.cell import CellRecord
from exaslurm.registry.read import read_record
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread
from tests.controller.conftest import eventually

RECORD = CellRecord(
    deployment="d",
    cell="c000",
    generation=2,
    plan_hash="h",
    job_id="1",
    seq=0,
    lease_s=30.0,
    state_url="http://h:1",
    replicas=(),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "d")
    made.make()
    return made


async def settle(publisher: Publisher, seq: int) -> None:
    await eventually(lambda: publisher.seq >= seq)


async def test_writes_what_changed_once(run_dir: RunDir) -> None:
    published: list[CellRecord] = []
    publisher = Publisher(run_dir, IoThread(), published.append)
    task = asyncio.create_task(publisher.run())
    publisher.want(RECORD)
    await settle(publisher, 1)
    publisher.want(RECORD)
    publisher.want(dataclasses.replace(RECORD, seq=77))
    publisher.want(dataclasses.replace(RECORD, state_url="http://h:2"))
    await settle(publisher, 2)
    await asyncio.sleep(0.05)
    task.cancel()
    assert [record.seq for record in published] == [1, 2]
    found = read_record(run_dir.record("c000"))
    assert (found.seq, found.state_url) == (2, "http://h:2")


async def test_renews_the_lease(run_dir: RunDir) -> None:
    publisher = Publisher(run_dir, IoThread(), lambda _: None)
    publisher.want(dataclasses.replace(RECORD, lease_s=0.15))
    task = asyncio.create_task(publisher.run())
    await settle(publisher, 4)
    task.cancel()
    assert read_record(run_dir.record("c000")).seq >= 3


async def test_counts_on_above_the_file(run_dir: RunDir) -> None:
    first = Publisher(run_dir, IoThread(), lambda _: None)
    first.want(RECORD)
    for _ in range(5):
        assert await first.flush()
    second = Publisher(run_dir, IoThread(), lambda _: None)
    await second.recall("c000")
    second.want(RECORD)
    assert await second.flush()
    assert read_record(run_dir.record("c000")).seq == 6


async def test_no_record_yet(run_dir: RunDir) -> None:
    publisher = Publisher(run_dir, IoThread(), lambda _: None)
    await publisher.recall("c000")
    assert publisher.seq == 0


async def test_a_newer_generation_ends_it(run_dir: RunDir) -> None:
    newer = Publisher(run_dir, IoThread(), lambda _: None)
    newer.want(dataclasses.replace(RECORD, generation=3))
    assert await newer.flush()
    older = Publisher(run_dir, IoThread(), lambda _: None)
    older.want(RECORD)
    await older.flush()
    assert older.lost is not None
    assert "generation 3" in older.lost
    await older.flush()
    assert read_record(run_dir.record("c000")).generation == 3


async def test_a_hung_file_system_blocks_nothing(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def hang(*_: object) -> None:
        hangs.wait(20)

    monkeypatch.setattr(publish, "write_record", hang)
    publisher = Publisher(run_dir, IoThread(), lambda _: None)
    publisher.want(RECORD)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await publisher.flush(timeout_s=0.2)
    assert not await publisher.flush(timeout_s=5.0)  # at once: the first one still hangs
    assert loop.time() - began < 2
    hangs.set()
    monkeypatch.undo()
    await eventually(publisher.flush)
    assert read_record(run_dir.record("c000")).seq >= 3
