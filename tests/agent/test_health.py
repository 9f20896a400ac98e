"""The preflight of a node: real checks of this host, in the agent's hands."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from exaslurm.agent import health
from exaslurm.agent.health import Preflight, needs_of
from exaslurm.agent.settings import Settings
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import Device, EngineKind, EnginePlan, ModelSource
from exaslurm.rundir import RunDir
from tests.tools import plans

FACTS = NodeFacts(
    node="n1", het_group=1, order=0, address="127.0.0.1", agent_port=1, port_base=20000,
    cpus=(0,), cpus_granted=1, mem_mib=1000,
)  # fmt: skip


def settings(
    root: Path, *, device: Device = "cpu", kind: EngineKind = "vllm", shared: str = ""
) -> Settings:
    run_dir = RunDir(root / "d")
    run_dir.make()
    model = plans.make_model(
        source=ModelSource(kind="none", value="m"),
        engine=EnginePlan(kind=kind, device=device),
    )
    plan = plans.make_plan(
        models=[model],
        cells=plans.make_cells(
            plans.make_component(0, "head"),
            plans.make_component(1, "worker", gpus_per_node=4),
            replicas=[("m", "base", 1)],
        ),
        node=plans.make_environment(shared=shared or str(root)),
    ).sealed()
    node_dir = root / "node"
    node_dir.mkdir(exist_ok=True)
    return Settings(
        node_dir=node_dir, run_dir=run_dir, gen_dir=run_dir.generation(1), cell_name="c000",
        het_group=1, head_host="127.0.0.1", port_base=20000, local=False, grace_s=1.0, plan=plan,
        environ={},
    )  # fmt: skip


async def examined(root: Path, **options: Any) -> dict[str, str]:
    """Outcomes of what did not pass, by identifier."""
    told: list[bool] = []
    preflight = Preflight(settings(root, **options), FACTS, lambda: told.append(True))
    assert preflight.result is None
    await preflight.run()
    assert told == [True]
    assert preflight.result is not None
    assert preflight.result.host == "n1"
    assert {check.outcome for check in preflight.result.checks} <= {"warn", "fail"}
    return {check.id: check.outcome for check in preflight.result.checks}


async def test_what_is_fine_is_not_told(tmp_path: Path) -> None:
    found = await examined(tmp_path, kind="simulated")
    assert "storage.state" not in found
    assert "fail" not in found.values() or found.keys() <= {"python.version", "shm.size"}


async def test_a_node_without_its_shared_directory(tmp_path: Path) -> None:
    found = await examined(tmp_path, kind="simulated", shared="/sys/kernel/nowhere")
    assert found["storage.shared"] == "fail"


async def test_gpus_that_are_not_there(tmp_path: Path) -> None:
    found = await examined(tmp_path, device="cuda")
    assert found["gpu.count"] == "fail"


async def test_a_restarted_agent_goes_by_the_first_examination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await examined(tmp_path, kind="simulated", shared="/sys/kernel/nowhere")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("examined again")

    monkeypatch.setattr(health, "examine", never)
    assert await examined(tmp_path, kind="simulated") == first


async def test_checks_that_hang_are_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(health, "LIMIT_S", 0.05)
    monkeypatch.setattr(health, "examine", lambda *_, **__: release.wait(10))
    assert await examined(tmp_path, kind="simulated") == {"node.answer": "fail"}
    release.set()


async def test_a_check_that_nobody_foresaw_keeps_no_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("what?")

    monkeypatch.setattr(health, "examine", broken)
    assert await examined(tmp_path, kind="simulated") == {}


def test_what_a_node_must_offer(tmp_path: Path) -> None:
    gpu = needs_of(settings(tmp_path, device="cuda"), FACTS)
    assert (gpu.gpus, gpu.vllm, gpu.names, gpu.port_block) == (4, True, (), 0)
    assert needs_of(settings(tmp_path, device="cpu"), FACTS).gpus is None
    head = dataclasses.replace(settings(tmp_path, device="cuda"), het_group=0)
    assert (needs_of(head, FACTS).gpus, needs_of(head, FACTS).vllm) == (None, False)
