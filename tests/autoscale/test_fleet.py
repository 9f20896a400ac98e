"""Replicas come and go with the load: real supervisor, controllers and router, simulated nodes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from exaslurm.simulate.layout import Layout
from exaslurm.simulate.world import World
from exaslurm.submit.records import read_submissions
from exaslurm.util.clock import Clock

SPEC = """\
schema: exaslurm/v1
deployment: soak
site: simulated
workers: {nodes: 2, nodes_per_cell: 1}
gateway: {home: service}
autoscale:
  {max: 4, requests_per_replica: 1, cooldown_s: 60, scale_to_zero: true, idle_s: 150}
models:
  - name: pretend
    engine: {kind: simulated, args: {max-num-seqs: 16, decode-tokens-per-s: 40, load-s: 3}}
    max_replicas_per_node: 2
    shards: [{name: base, replicas: 1}]
"""
# Routers count in the machine's seconds: at this speed there seem to be a tenth as many requests.
FACTOR = 10.0
ASKERS = 40
BODY = {"model": "pretend", "prompt": "on and on", "max_tokens": 40, "ignore_eos": True}


class Small(Layout):
    def spec(self) -> str:
        return SPEC


@dataclass
class Asker:
    """Asks the router again and again."""

    session: aiohttp.ClientSession
    url: str
    answers: int = 0
    going: bool = True

    async def run(self) -> None:
        while self.going:
            await self.ask()

    async def ask(self) -> dict[str, Any]:
        async with self.session.post(f"{self.url}/v1/completions", json=BODY) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            self.answers += 1
            return dict(json.loads(text))


async def eventually(what: str, true: Callable[[], bool], world: World, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not true():
        logs = (world.directory / "logs" / "supervisor.log").read_text()[-3000:]
        assert time.monotonic() < until_s, f"{what}: {world.run_dir.read_scale()}\n{logs}"
        await asyncio.sleep(0.1)


async def scenario(directory: Path) -> None:
    clock = Clock(factor=FACTOR, origin_s=time.time())
    world = World(directory, Small(nodes=3, cells=2, per_cell=1), clock, shared=False)
    await world.start()
    try:
        await live(world)
    finally:
        await world.close()


async def live(world: World) -> None:
    def wanted() -> int:
        scale = world.run_dir.read_scale()
        return -1 if scale is None else scale.replicas["pretend:base"]

    def turns() -> list[str]:
        generation = world.run_dir.generation(1)
        found = read_submissions(generation)
        return [name for name, item in found.items() if item.state == "submitted"]

    def serving() -> int:
        found = [json.loads(path.read_text()) for path in world.run_dir.registry.glob("*.json")]
        return sum(item["ready"] for record in found for item in record["replicas"])

    assert turns() == ["c000"]
    headers = {"Authorization": f"Bearer {world.client_key()}"}
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        until_s = time.monotonic() + 20
        while (await session.get(f"{world.url}/v1/models")).status != 200:  # the key is new
            assert time.monotonic() < until_s
            await asyncio.sleep(0.1)
        asker = Asker(session, world.url)
        await asker.ask()  # held, if nothing serves yet
        assert serving() == 1
        askers = [asyncio.create_task(asker.run()) for _ in range(ASKERS)]
        await eventually("up", lambda: wanted() == 4 and serving() == 4, world, 90)
        assert turns() == ["c000", "c001"]
        asker.going = False
        await asyncio.gather(*askers)
        await eventually("down", lambda: 0 < wanted() < 4, world, 90)
        await eventually("asleep", lambda: wanted() == 0 and not turns(), world, 120)
        async with session.get(f"{world.url}/v1/models") as page:
            names = [card["id"] for card in (await page.json())["data"]]
        assert names == ["pretend", "pretend:base"]
        held = [asyncio.create_task(asker.ask()) for _ in range(3)]
        answers = await asyncio.gather(*held)
        assert all("choices" in answer for answer in answers)
        assert 0 < wanted() <= 2
    counts = [
        int(line["replicas"])
        for line in map(json.loads, world.run_dir.history.read_text().splitlines())
        if line["verb"] == "scale"
    ]
    up, down = counts[: counts.index(4) + 1], counts[counts.index(4) : counts.index(0) + 1]
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert world.unforeseen == 0


@pytest.mark.timeout(480)
def test_up_down_asleep_and_awake_without_a_lost_request(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path / "w"))
