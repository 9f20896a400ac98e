"""The follower against real files and real controllers (of a test)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import web

from exaslurm.core.cell import CellRecord, EngineLoad
from exaslurm.registry import follow
from exaslurm.registry.follow import RegistryFollower
from exaslurm.registry.replica import Replica
from exaslurm.registry.write import remove_record, write_record
from exaslurm.rundir import RunDir

from .test_live import record, state, view

KEY = "inner"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RECORDS_EVERY_S", 0.02)
    monkeypatch.setattr(follow, "STATE_EVERY_S", 0.02)
    monkeypatch.setattr(follow, "SILENT_AFTER_S", 0.1)
    monkeypatch.setattr(follow, "PROBE_EVERY_S", 0.05)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "hello")
    run_dir.make()
    return run_dir


class Controller:
    """Answers ``/v1/state`` with what the test says."""

    def __init__(self) -> None:
        self.body = state("loading")
        self.status = 200
        self.asked = 0
        self.url = ""
        self.query = ""
        self.meanwhile: Callable[[], None] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.query = request.query["router"]
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        body, meanwhile = self.body, self.meanwhile
        if meanwhile is not None:
            self.meanwhile = None
            meanwhile()
        return web.Response(body=body, status=self.status)

    async def models(self, request: web.Request) -> web.Response:
        """As an engine of the deployment would answer."""
        known = request.headers.get("Authorization") == f"Bearer {KEY}"
        return web.Response(status=200 if known else 401)


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    controller = Controller()
    app = web.Application()
    app.router.add_get("/v1/state", controller.handle)
    app.router.add_get("/v1/models", controller.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    controller.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield controller
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following(run_dir: RunDir) -> AsyncIterator[RegistryFollower]:
    follower = RegistryFollower(run_dir, KEY)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(what: Callable[[], bool]) -> None:
    deadline_s = asyncio.get_running_loop().time() + 5
    while not what():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.01)


def _taking(follower: RegistryFollower) -> list[bool]:
    return [replica.takes_requests for replica in follower.replicas]


def _record(controller: Controller, *ready: bool, **changes: object) -> CellRecord:
    return record(*ready, state_url=controller.url, **changes)


async def test_from_a_record_to_live_state_to_the_end(
    run_dir: RunDir, controller: Controller
) -> None:
    async with following(run_dir) as follower:
        seen: list[int] = []
        follower.subscribe(lambda replicas: seen.append(len(replicas)))
        assert seen == [0]
        write_record(run_dir, _record(controller, False))
        await until(lambda: [r.state for r in follower.replicas] == ["loading"])
        controller.body = state("ready", "loading")
        await until(lambda: _taking(follower) == [True, False])
        assert seen[-1] == 2
        remove_record(run_dir, "c000")
        await until(lambda: not follower.replicas)
        asked = controller.asked
        await asyncio.sleep(0.1)
        assert controller.asked <= asked + 1


async def test_a_silent_or_confused_controller_changes_nothing(
    run_dir: RunDir, controller: Controller
) -> None:
    write_record(run_dir, _record(controller, True))
    controller.body = state("ready")
    async with following(run_dir) as follower:
        await until(lambda: _taking(follower) == [True])
        before: tuple[Replica, ...] = follower.replicas
        for body, status in ((b"nonsense", 200), (b"", 500), (b"", 401), (b"\xff", 200)):
            controller.body, controller.status = body, status
            asked = controller.asked
            await until(lambda asked=asked: controller.asked > asked + 2)  # type: ignore[misc]
            assert follower.replicas == before
        controller.body, controller.status = state("failed"), 200
        await until(lambda: _taking(follower) == [False])


@pytest.mark.parametrize("nowhere", ["http://127.0.0.1:1", "http://a..b:1"])
async def test_replicas_of_a_cell_that_is_gone_are_asked_themselves(
    run_dir: RunDir, controller: Controller, nowhere: str
) -> None:
    """Its head is dead and its lease is over: one replica answers, the other does not."""
    made = record(True, True, state_url="http://127.0.0.1:1", lease_s=0.1)
    alive, dead = made.replicas
    alive = dataclasses.replace(alive, url=controller.url)
    dead = dataclasses.replace(dead, url=nowhere)
    write_record(run_dir, dataclasses.replace(made, replicas=(alive, dead)))
    async with following(run_dir) as follower:
        await until(lambda: _taking(follower) == [True, False])
        assert follower.replicas[1].state == "silent"
        cell = follower.describe()["cells"][0]
        assert (cell["heard"], cell["replicas"]) == (False, 2)


async def test_a_replica_that_was_silent_once_is_not_for_ever(
    run_dir: RunDir, controller: Controller
) -> None:
    """Its controller cannot be reached from here, but its record is renewed."""
    controller.status = 503
    nowhere = "http://127.0.0.1:1"
    made = record(True, state_url=nowhere)
    (replica,) = made.replicas
    made = dataclasses.replace(made, replicas=(dataclasses.replace(replica, url=nowhere),))
    write_record(run_dir, made)
    async with following(run_dir) as follower:
        await until(lambda: [r.state for r in follower.replicas] == ["silent"])
        write_record(run_dir, dataclasses.replace(made, seq=made.seq + 1))
        await until(lambda: _taking(follower) == [True])


async def test_what_was_asked_before_somebody_spoke_for_it_does_not_count(
    run_dir: RunDir, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answers(_follower: RegistryFollower, _url: str, path: str) -> bool:
        if path == "/v1/models":
            asked.set()
            await go_on.wait()
        return False

    monkeypatch.setattr(RegistryFollower, "_answers", answers)
    made = record(True, state_url="http://127.0.0.1:1")
    write_record(run_dir, made)
    async with following(run_dir) as follower:
        await asked.wait()
        write_record(run_dir, dataclasses.replace(made, seq=made.seq + 1))
        await until(lambda: _taking(follower) == [True])
        go_on.set()
        await asyncio.sleep(0.1)
        assert _taking(follower) == [True]


async def test_a_registry_that_cannot_be_read_keeps_what_is_known(
    run_dir: RunDir, controller: Controller
) -> None:
    write_record(run_dir, _record(controller, True))
    controller.body = state("ready")
    async with following(run_dir) as follower:
        await until(lambda: _taking(follower) == [True])
        run_dir.registry.rename(run_dir.path / "away")
        run_dir.registry.write_text("in the way")
        await until(lambda: follower.describe()["trouble"] is not None)
        assert _taking(follower) == [True]


async def test_a_file_system_that_hangs_does_not_stop_live_state(
    run_dir: RunDir, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(run_dir, _record(controller, True))
    controller.body = state("ready")
    monkeypatch.setattr(follow, "_FILE_TIMEOUT_S", 0.05)
    async with following(run_dir) as follower:
        await until(lambda: _taking(follower) == [True])
        event = threading.Event()
        monkeypatch.setattr(follower._reader, "read", lambda: event.wait(10))
        await until(lambda: follower.describe()["trouble"] is not None)
        controller.body = state("draining")
        await until(lambda: _taking(follower) == [False])
        event.set()


async def test_figures_reach_the_router(run_dir: RunDir, controller: Controller) -> None:
    write_record(run_dir, _record(controller, True))
    controller.body = view("ready")
    seen: dict[str, int] = {}

    def take(loads: Mapping[str, EngineLoad]) -> None:
        seen.update({ident: load.running for ident, load in loads.items()})

    async with following(run_dir) as follower:
        follower.subscribe_loads(take)
        await until(lambda: seen == {"c000-r0000": 1})
        await until(lambda: bool(controller.query))
        shown = follower.replicas
        controller.body = view("ready", seen=controller.query, running=5)
        await until(lambda: seen == {"c000-r0000": 5})
        assert follower.replicas is shown


async def test_a_record_that_comes_during_a_question_has_it_asked_again(
    run_dir: RunDir, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    write_record(run_dir, _record(controller, True))
    controller.body = view("ready")
    async with following(run_dir) as follower:
        await until(lambda: bool(controller.query))
        cell, tag = follower._cells["c000"], controller.query

        def other_record() -> None:
            """The answer under way has figures alone, as it was asked."""
            controller.body = view("ready")
            changed = dataclasses.replace(cell.record.replicas[0], weight=5.0)
            cell.take_record(dataclasses.replace(cell.record, replicas=(changed,)), 0.0)

        controller.body = view("ready", seen=tag)
        controller.meanwhile = other_record
        await until(lambda: controller.body == view("ready") and cell.told.tag == tag)
        assert follower.replicas[0].weight == 5.0
    assert "no cell state" not in caplog.text
