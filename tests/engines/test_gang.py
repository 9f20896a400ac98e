"""What the parts of an engine over several nodes are started with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from exaslurm.bind.gang import joined
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.plan import EnginePlan, Executor, ModelSource, Plan
from exaslurm.core.ports import ENGINE_STRIDE
from exaslurm.engines.build import build_engine
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import PlanError, ReplicaError
from tests.tools import plans

RAY = {"RAY_ADDRESS": "10.0.0.9:20001", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/t"}


def make_plan(
    *, tensor: int, pipeline: int = 1, executor: Executor = "mp", device: Any = "cuda", **more: Any
) -> Plan:
    model = plans.make_model(
        source=ModelSource(kind="path", value="/models/m"),
        engine=EnginePlan(kind="vllm", device=device, **more),
        tensor=tensor,
        pipeline=pipeline,
        gpus=0 if device == "cpu" else tensor * pipeline // 2,
        cores=2,
        mem_gib=16.0,
    )
    model = dataclasses.replace(model, nodes=2, executor=executor)
    return plans.make_plan(
        models=[model], cells=plans.make_cells(), node=plans.make_environment(python="/e/python")
    )


def make_gang(gpus: tuple[str, ...] = ("0", "1", "2", "3"), **more: Any) -> ReplicaBinding:
    """Two nodes; the second has another slot free."""
    first = ReplicaBinding(
        id="c000-r0000", model="m", shard="base", node="n1", address="10.0.0.1", port=20020,
        slot=0, cores=(0, 1), pinned=True, mem_nodes=(0,), gpus=gpus, hca=None, **more,
    )  # fmt: skip
    second = dataclasses.replace(
        first, node="n2", address="10.0.0.2", port=21024, slot=1, cores=(2, 3)
    )
    return joined([first, second])


def build(part: ReplicaBinding, plan: Plan, **more: Any) -> ExecSpec:
    place = EnginePlace(
        node_dir=Path("/nowhere"), log=Path("/log"), key_file=Path("/key"), interface="hsn0", **more
    )
    return build_engine(part, plan, "/models/m", ["m"], place)


def between(spec: ExecSpec, first: str, last: str) -> tuple[str, ...]:
    return spec.argv[spec.argv.index(first) : spec.argv.index(last)]


def test_mp_on_gpus() -> None:
    plan = make_plan(tensor=4, pipeline=2)
    leader, follower = (build(part, plan) for part in make_gang().parts())
    common = (
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"),
        *("--distributed-executor-backend", "mp", "--nnodes", "2"),
    )
    meeting = ("--master-addr", "10.0.0.1", "--master-port", "20021")
    assert between(leader, "--tensor-parallel-size", "--shutdown-timeout") == (
        *common, "--node-rank", "0", *meeting,
    )  # fmt: skip
    assert between(follower, "--tensor-parallel-size", "--shutdown-timeout") == (
        *common, "--node-rank", "1", *meeting, "--headless",
    )  # fmt: skip
    assert leader.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert leader.env["VLLM_HOST_IP"] == "10.0.0.1"
    assert follower.env["VLLM_HOST_IP"] == "10.0.0.2"
    assert (leader.cores, follower.cores) == ((0, 1), (2, 3))
    assert "RAY_ADDRESS" in leader.unset
    assert "RAY_ADDRESS" not in leader.env


def test_mp_on_cpus() -> None:
    plan = make_plan(tensor=2, device="cpu")
    leader, follower = (build(part, plan) for part in make_gang(gpus=()).parts())
    for spec, cores in ((leader, "0,1"), (follower, "2,3")):
        assert spec.argv.count("--distributed-executor-backend") == 1
        assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == cores  # one worker on each node
        assert spec.env["OMP_NUM_THREADS"] == "2"
        assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in spec.env


def test_its_ports_are_of_its_slot_and_differ() -> None:
    plan = make_plan(tensor=2)
    for part in make_gang().parts():
        spec = build(part, plan)
        port = int(spec.argv[spec.argv.index("--port") + 1])
        own = range(port, port + ENGINE_STRIDE)
        internal = int(spec.env["VLLM_PORT"])
        assert internal in own
        meeting = int(spec.argv[spec.argv.index("--master-port") + 1])
        assert meeting not in (port, internal)
        assert (meeting in own) == (part.rank == 0)


def test_every_start_meets_at_the_same_port() -> None:
    plan = make_plan(tensor=2)
    assert build(make_gang(), plan).argv == build(make_gang(attempt=3), plan).argv


def test_ray_on_gpus() -> None:
    """Never run on GPUs: this holds the command to what vLLM 0.32 documents."""
    plan = make_plan(tensor=4, pipeline=2, executor="ray")
    spec = build(make_gang(), plan, ray_env=RAY)
    assert between(spec, "--tensor-parallel-size", "--shutdown-timeout") == (
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"),
        *("--distributed-executor-backend", "ray"),
    )
    assert "--nnodes" not in spec.argv
    assert "--headless" not in spec.argv
    assert spec.env.items() >= RAY.items()


def test_ray_without_ray_says_so() -> None:
    with pytest.raises(ReplicaError, match="the cell has no Ray"):
        build(make_gang(), make_plan(tensor=2, executor="ray"))


@pytest.mark.parametrize(
    "engine",
    [{"args": {"nnodes": 2}}, {"args": {"headless": None}}, {"extra_args": ("--master-port=1",)},
     {"args": {"distributed-executor-backend": "ray"}}],
)  # fmt: skip
def test_what_the_binding_says_is_not_for_the_user(engine: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="is set by exaslurm"):
        build(make_gang(), make_plan(tensor=2, **engine))
