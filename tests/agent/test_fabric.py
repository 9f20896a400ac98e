"""What an agent measures: the network's ports again and again, storage and the head once."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from exaslurm.agent.fabric import FabricWatch
from exaslurm.agent.settings import Settings
from exaslurm.core.fabric import FabricPlan
from exaslurm.core.topology import Hca, HcaPort
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread
from tests.agent.harness import free_block, make_plan
from tests.fabric.conftest import IB, write

PORT = HcaPort(number=1, state="ACTIVE", rate_gbps=200.0, link_layer="InfiniBand")
HCAS = tuple(Hca(name=f"mlx5_{n}", fabric="infiniband", ports=(PORT,)) for n in range(3))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    run_dir = RunDir(tmp_path / "run")
    run_dir.make()
    gen_dir = run_dir.generation(1)
    gen_dir.make(("c000",))
    plan = make_plan(tmp_path)
    fabric = FabricPlan(hcas=("mlx5_[01]",), xmit_wait_bytes=32)
    plan = dataclasses.replace(plan, node=dataclasses.replace(plan.node, fabric=fabric)).sealed()
    return Settings(
        node_dir=tmp_path, run_dir=run_dir, gen_dir=gen_dir, cell_name="c000", het_group=1,
        head_host="127.0.0.1", port_base=free_block(), local=False, grace_s=5.0, plan=plan,
        environ={},
    )  # fmt: skip


async def test_figures_of_the_ports_that_engines_may_use(
    settings: Settings, tmp_path: Path
) -> None:
    sys = tmp_path / "sys"
    for hca in HCAS:
        write(sys / "class/infiniband" / hca.name, IB)
    watch = FabricWatch(settings, every_s=0.02, sys=sys)
    task = asyncio.create_task(watch.run(HCAS))
    try:
        deadline = time.monotonic() + 10
        count = 123456
        while not any(port.congestion for port in watch.figures):
            assert time.monotonic() < deadline
            count += 1_000_000  # its port is held up all the time
            write(sys, {"class/infiniband/mlx5_1/ports/1/counters/port_xmit_wait": f"{count}\n"})
            await asyncio.sleep(0.005)
        assert [port.name for port in watch.figures] == ["mlx5_0:1", "mlx5_1:1"]
        assert watch.figures[0].congestion == 0.0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_node_without_a_fabric_has_no_figures(settings: Settings, tmp_path: Path) -> None:
    watch = FabricWatch(settings, every_s=0.01, sys=tmp_path)
    task = asyncio.create_task(watch.run(()))
    await asyncio.sleep(0.05)
    assert watch.figures == ()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_is_measured_once(settings: Settings) -> None:
    settings.gen_dir.plan.write_text("{}")
    found = await FabricWatch(settings).measures("127.0.0.1", IoThread())
    assert set(found) == {"storage_read_ms", "rtt_us"}
    assert 0 < found["storage_read_ms"] < 5000
    assert 0 < found["rtt_us"] < 1e6


async def test_what_cannot_be_measured_is_left_out(settings: Settings) -> None:
    settings = dataclasses.replace(settings, head_host="no-such-host.invalid")
    assert await FabricWatch(settings).measures("127.0.0.1", IoThread()) == {}
