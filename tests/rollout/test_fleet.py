"""Rollouts with real supervisor, controllers and router, on simulated nodes, under load."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest

from exaslurm.core.rollout import Rollout
from exaslurm.rollout.start import PolicyOptions, rollout
from exaslurm.simulate.layout import Layout
from exaslurm.simulate.slurm import SimulatedSlurm
from exaslurm.simulate.world import World
from exaslurm.util.clock import Clock

SPEC = """\
schema: exaslurm/v1
deployment: soak
site: simulated
workers: {nodes: 2, nodes_per_cell: 1}
gateway: {home: service}
# Machines that test are busy: four times as slow is plain all the same.
rollout: {slower: 2.5}
models:
  - name: pretend
    engine: {kind: simulated, args: {decode-tokens-per-s: PACE, max-model-len: LENGTH}}
    shards: [{name: base, replicas: 2}]
"""
FACTOR = 10.0
ASKERS = 8
BODY = {"model": "pretend", "prompt": "on and on", "max_tokens": 8, "ignore_eos": True}
POLICY = PolicyOptions(steps_percent=(30.0, 100.0), hold_s=40.0, min_requests=40)


def spec(pace: int, length: int) -> str:
    return SPEC.replace("PACE", str(pace)).replace("LENGTH", str(length))


class Small(Layout):
    def spec(self) -> str:
        return spec(60, 512)


class Load:
    """Asks the router again and again, and forgives nothing."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url
        self.answers = 0
        self.wrong: list[str] = []
        self.going = True

    async def run(self) -> None:
        while self.going:
            async with self.session.post(f"{self.url}/v1/completions", json=BODY) as answer:
                text = await answer.text()
            if answer.status == 200:
                self.answers += 1
            else:
                self.wrong.append(f"{answer.status} {text}")

    async def begin(self) -> None:
        """When both replicas serve."""
        until_s = time.monotonic() + 60
        while (await self._usable()) < 2:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.1)

    async def _usable(self) -> int:
        async with self.session.get(f"{self.url}/status") as answer:
            if answer.status != 200:
                return 0
            return sum(item["takes_requests"] for item in (await answer.json())["replicas"])


async def roll_out(world: World, text: str) -> Rollout:
    """To its end."""
    path = world.directory / "new.yaml"
    path.write_text(text)
    environ = world.environ
    begun = await asyncio.to_thread(
        rollout, path, options=POLICY, environ=environ, slurm=SimulatedSlurm(environ)
    )
    until_s = time.monotonic() + 120
    while True:
        found = world.run_dir.read_rollout()
        assert found is not None
        if found.is_over and found.candidate == begun.rollout.candidate:
            return found
        logs = (world.directory / "logs" / "supervisor.log").read_text()[-4000:]
        assert time.monotonic() < until_s, f"{found}\n{logs}"
        await asyncio.sleep(0.1)


async def scenario(directory: Path) -> None:
    clock = Clock(factor=FACTOR, origin_s=time.time())
    world = World(directory, Small(nodes=6, cells=2, per_cell=1), clock, shared=False)
    await world.start()
    try:
        await live(world)
    finally:
        await world.close()


async def live(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.client_key()}"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        load = Load(session, world.url)
        await load.begin()
        askers = [asyncio.create_task(load.run()) for _ in range(ASKERS)]
        slow = await roll_out(world, spec(15, 512))
        good = await roll_out(world, spec(60, 768))
        load.going = False
        await asyncio.gather(*askers)
        async with session.get(f"{world.url}/status") as page:
            replicas = (await page.json())["replicas"]
    assert slow.state == "undone"
    assert "s with the new version and" in str(slow.reason)
    assert (good.state, good.reason) == ("done", None)
    assert load.wrong == []
    assert load.answers > 200
    desired = world.run_dir.read_desired()
    assert desired is not None
    assert desired.generation == good.candidate
    assert {item["version"] for item in replicas if item["takes_requests"]} == {
        good.names["pretend"][1]
    }
    lines = [json.loads(line) for line in world.run_dir.history.read_text().splitlines()]
    said = [line["verb"] for line in lines if line["generation"] == good.candidate]
    assert [verb for verb in said if verb.startswith("rollout")] == [
        "rollout", "rollout share", "rollout step", "rollout share", "rollout cell",
        "rollout share", "rollout finishing", "rollout done",
    ]  # fmt: skip
    assert world.unforeseen == 0


@pytest.mark.timeout(300)
def test_a_slow_version_is_taken_back_and_a_good_one_goes_to_all(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path / "w"))
