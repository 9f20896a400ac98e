"""A real Ray of two nodes on this machine: options, token, driver, death of the GCS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exaslurm.core import ports
from exaslurm.core.cell import RayTarget
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.fabric import FabricPlan
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import RayPlan
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.raycluster import client as ray_client
from exaslurm.raycluster.client import RayClient, RayError
from exaslurm.raycluster.start import auth_env, head_command, worker_command
from exaslurm.rundir import RunDir
from exaslurm.util.ports import first_taken
from exaslurm.util.process import start_ticks

PYTHON = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env")) / "bin" / "python"
REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not PYTHON.exists(), reason="no node environment: run scripts/env"),
]

PLAN: Any = SimpleNamespace(
    layout="single",
    node=SimpleNamespace(fabric=FabricPlan()),
    ray=RayPlan(enabled=True, start_timeout_s=60.0, object_store_mib=100),
    models=(SimpleNamespace(max_replicas_per_node=2),),
)


class Cluster:
    """Ray nodes of the test, each in a session of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = RunDir(directory / "d")
        self.run_dir.make()
        ensure_secrets(self.run_dir)
        self.bases = _free_bases(2)
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.bases[0] + ports.RAY_GCS}"

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def facts(self, index: int) -> NodeFacts:
        return NodeFacts(
            node=f"n{index}",
            het_group=0,
            order=index,
            address="127.0.0.1",
            agent_port=1,
            port_base=self.bases[index],
            cpus=(0,),
            cpus_granted=2,
            mem_mib=1024,
        )

    def start(self, index: int) -> subprocess.Popen[bytes]:
        node_dir = self.directory / f"n{index}"
        node_dir.mkdir(exist_ok=True)
        if index == 0:
            spec = head_command(PLAN, self.facts(0), self.run_dir, node_dir, 1)
        else:
            gcs = self.bases[0] + ports.RAY_GCS
            target = RayTarget(epoch=1, head_address="127.0.0.1", gcs_port=gcs)
            spec = worker_command(PLAN, self.facts(index), target, self.run_dir, node_dir)
        return self._run(spec, node_dir)

    def _run(self, spec: ExecSpec, node_dir: Path) -> subprocess.Popen[bytes]:
        env = {name: v for name, v in self.environ.items() if name not in spec.unset}
        with (node_dir / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(PYTHON), *spec.argv[1:]],
                env={**env, **spec.env},
                cwd=spec.cwd,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.nodes.append(process)
        return process

    async def gcs_accepts(self) -> None:
        def accepts() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.bases[0] + ports.RAY_GCS)) == 0

        await until(accepts, 60)

    def pids(self) -> list[int]:
        """Everything that carries one of our directories in its command line."""
        mark = str(self.directory).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if mark in line and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        for process in self.nodes:
            for pid in [process.pid, *self.pids()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(20)


def _free_bases(count: int) -> list[int]:
    """Blocks of ports that nobody uses; not those that a deployment would take first."""
    found = []
    for base in range(31500, 19999, -500):
        if first_taken([*range(base, base + 11), base + 200, base + 449]) is None:
            found.append(base)
            if len(found) == count:
                return found
    raise AssertionError("no free blocks of ports")


async def until(check: Callable[[], Any], seconds: float) -> Any:
    for _ in range(int(seconds * 10)):
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"not true after {seconds} s")


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(ray_client.sys, "executable", str(PYTHON))
    directory = Path(tempfile.mkdtemp(prefix="xr-", dir="/tmp"))
    made = Cluster(directory)
    try:
        yield made
    finally:
        made.end()
        await until(lambda: not made.pids(), 20)
        shutil.rmtree(directory)


async def connect(cluster: Cluster, *, deadline_s: float = 60.0) -> RayClient:
    environ = {**cluster.environ, **auth_env(cluster.run_dir)}
    return await RayClient.connect(cluster.address, environ, deadline_s=deadline_s)


def group(node: str, **bundle: float) -> dict[str, Any]:
    return {"bundles": [{"exa_slot": 1, **bundle}], "selectors": [{"exa-node": node}]}


async def test_nodes_groups_and_the_death_of_the_gcs(cluster: Cluster) -> None:
    head = cluster.start(0)
    await cluster.gcs_accepts()
    cluster.start(1)
    client = await connect(cluster)

    async def both() -> list[dict[str, Any]] | None:
        nodes = await client.nodes(timeout_s=20)
        return nodes if sum(node["alive"] for node in nodes) == 2 else None

    nodes = await until(both, 60)
    by_name = {node["labels"]["exa-node"]: node for node in nodes}
    assert sorted(by_name) == ["n0", "n1"]
    assert by_name["n1"]["resources"]["CPU"] == 2.0
    assert by_name["n1"]["resources"]["exa_slot"] == 2.0
    assert by_name["n1"]["labels"]["role"] == "worker"
    # What Ray was told it took: its directory on the worker, and no client server.
    assert list((cluster.directory / "n1" / "ray").glob("session_*"))
    assert first_taken([cluster.bases[0] + ports.RAY_CLIENT_SERVER]) is None

    wanted = {"r0": group("n0"), "r1": group("n1", CPU=1)}
    await client.set_groups(wanted, timeout_s=30)

    async def created() -> bool:
        states = await client.group_states(timeout_s=20)
        return states == {"r0": "CREATED", "r1": "CREATED"}

    await until(created, 30)
    assert await client.set_groups(wanted, timeout_s=30) == {"r0": "CREATED", "r1": "CREATED"}
    # Conditions beside the node's name, in every form that they may take.
    more = {"role": "in(worker,head)", "epoch": "!2", "numa": "!in(98,99)"}
    conditioned = {"bundles": [{"exa_slot": 1}], "selectors": [{"exa-node": "n0", **more}]}
    await client.set_groups({**wanted, "r2": conditioned}, timeout_s=30)

    async def all_created() -> bool:
        states = await client.group_states(timeout_s=20)
        return states == dict.fromkeys(("r0", "r1", "r2"), "CREATED")

    await until(all_created, 30)
    states = await client.set_groups({**wanted, "r2": conditioned}, timeout_s=30)
    assert states == dict.fromkeys(("r0", "r1", "r2"), "CREATED")
    # A replica moves, another one goes.
    await client.set_groups({"r1": group("n0", CPU=1)}, timeout_s=30)

    async def moved() -> bool:
        return await client.group_states(timeout_s=20) == {"r1": "CREATED"}

    await until(moved, 30)
    # Ray disagrees: there is no such node. That is a state, not an error.
    states = await client.set_groups({"r9": group("nowhere")}, timeout_s=30)
    assert states == {"r9": "PENDING"}

    (gcs,) = [pid for pid in cluster.pids() if b"gcs_server" in _cmdline(pid).split(b"\0")[0]]
    os.kill(gcs, signal.SIGKILL)
    with pytest.raises(RayError):
        await client.nodes(timeout_s=5)
    assert await asyncio.to_thread(head.wait, 30) != 0  # which the head's agent reports
    began = asyncio.get_running_loop().time()
    await client.close()
    assert asyncio.get_running_loop().time() - began < 5
    with pytest.raises(RayError, match="ended"):
        await client.nodes(timeout_s=5)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_without_the_token_nobody_gets_in(cluster: Cluster) -> None:
    cluster.start(0)
    await cluster.gcs_accepts()
    client = await connect(cluster)
    assert len(await client.nodes(timeout_s=20)) == 1
    await client.close()
    environ = {name: v for name, v in cluster.environ.items() if not name.startswith("RAY_AUTH")}
    with pytest.raises(RayError):
        await RayClient.connect(cluster.address, environ, deadline_s=3.0)
    wrong = cluster.directory / "wrong"
    wrong.write_text("wrong")
    environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(wrong)}
    with pytest.raises(RayError):
        await RayClient.connect(cluster.address, environ, deadline_s=3.0)
    token = cluster.run_dir.ray_token.read_text().strip()
    for pid in cluster.pids():
        assert token.encode() not in _cmdline(pid)


async def test_the_driver_ends_with_its_parent(cluster: Cluster) -> None:
    cluster.start(0)
    await cluster.gcs_accepts()
    parent = start_parent(cluster)
    with parent:
        assert parent.stdout is not None
        driver = json.loads(await asyncio.to_thread(parent.stdout.readline))
        assert start_ticks(driver) is not None
        parent.kill()
    await until(lambda: start_ticks(driver) is None, 20)


def start_parent(cluster: Cluster) -> subprocess.Popen[bytes]:
    """A process that connects, prints its driver's pid and waits."""
    script = (
        "import asyncio, json, os, sys\n"
        "from exaslurm.raycluster.client import RayClient\n"
        "async def main():\n"
        "    client = await RayClient.connect(sys.argv[1], os.environ, deadline_s=60)\n"
        "    print(json.dumps(client._process.pid), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    return subprocess.Popen(
        [str(PYTHON), "-c", script, cluster.address],
        env={**cluster.environ, **auth_env(cluster.run_dir)},
        stdout=subprocess.PIPE,
    )


async def test_nobody_there_is_an_error_in_time(cluster: Cluster) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(RayError):
        await connect(cluster, deadline_s=1.0)
    assert asyncio.get_running_loop().time() - began < 60
