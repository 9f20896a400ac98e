"""A node of a gang is silent: a real request decides whether all of it is there."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from exaslurm.controller import peers
from exaslurm.controller.cell import Cell
from exaslurm.controller.nodes import SILENT_AFTER_S
from exaslurm.controller.peers import Peers
from exaslurm.controller.replicas import Replica
from tests.controller.conftest import eventually
from tests.controller.test_gangs import gang_cell, served


class Leader:
    """Rank 0: /health is 200 whatever becomes of the others; requests hang when they are gone."""

    def __init__(self) -> None:
        self.complete = True
        self.requests = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _chat(self, _: web.Request) -> web.Response:
        self.requests += 1
        if not self.complete:
            await asyncio.Event().wait()
        return web.json_response({})


@pytest.fixture
async def leader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Leader, Cell, Replica]]:
    monkeypatch.setattr(peers, "_GANG_PROBE_S", 0.5)
    leader, cell = Leader(), gang_cell()
    agents, replica = served(cell)
    runner = web.AppRunner(leader.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    assert replica.gang is not None
    replica.binding = replica.gang.binding = dataclasses.replace(replica.binding, port=port)
    # Now everybody but n3 has just reported.
    agents.deaf = {"n3"}
    now = time.monotonic()
    for node in cell.members.known():
        node.reported_s = now - (SILENT_AFTER_S + 5.0 if node.name == "n3" else 0.0)
    yield leader, cell, replica
    await runner.cleanup()


async def test_while_it_answers_it_stays(leader: tuple[Leader, Cell, Replica]) -> None:
    server, cell, replica = leader
    async with aiohttp.ClientSession() as session:
        asker = Peers(cell, session, "key", lambda: None)
        asker.probe_silent(time.monotonic())
        await eventually(lambda: server.requests)
        await asker.settle(timeout_s=5.0)
    assert replica.state == "ready"


async def test_when_it_does_not_it_has_failed(leader: tuple[Leader, Cell, Replica]) -> None:
    server, cell, replica = leader
    server.complete = False
    changed = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        asker = Peers(cell, session, "key", changed.set)
        now = time.monotonic()
        for later_s in (0.0, 5.0, 10.0):  # asked again and again, before there is an answer
            asker.probe_silent(now + later_s)
        await asyncio.wait_for(changed.wait(), 10.0)
        await asker.settle(timeout_s=5.0)
    assert server.requests == 1
    assert replica.state == "failed"
    assert str(replica.cause).startswith("n3 is silent and ")
    assert replica.gang is not None
    assert replica.gang.failed_node == "n3"
