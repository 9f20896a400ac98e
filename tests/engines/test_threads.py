"""Threads and NUMA nodes of ranks, as vLLM is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import Core, NodeTopology, NumaNode
from exaslurm.engines.threads import numa_argv, rank_cpus, thread_env
from tests.tools.plans import make_model

# Eight cores, two NUMA nodes; CPU n and n + 8 are the threads of core n.
NODE = NodeTopology(
    host="n",
    cores=tuple(Core(cpus=(n, n + 8), package=0, numa=n // 4) for n in range(8)),
    numa=tuple(
        NumaNode(index=i, kind="cpu", mem_mib=1024,
                 cpus=tuple(cpu for n in range(4 * i, 4 * i + 4) for cpu in (n, n + 8)))
        for i in range(2)
    ),
)  # fmt: skip


def replica(*cores: int, gpus: tuple[str, ...] = (), pinned: bool = True) -> ReplicaBinding:
    return ReplicaBinding(
        id="c000-r0000", model="m", shard="a", node="n", address="127.0.0.1", port=20020, slot=0,
        cores=tuple(sorted(cores)), pinned=pinned, mem_nodes=(), gpus=gpus, hca=None,
    )  # fmt: skip


def model(tensor: int = 1, **engine: Any) -> Any:
    made = make_model("m", tensor=tensor)
    return dataclasses.replace(made, engine=dataclasses.replace(made.engine, **engine))


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [
        ((0, 1, 8, 9), 1, [(0, 1)]),
        # Ranks have cores of their own, not two threads of the same.
        ((0, 1, 2, 3, 8, 9, 10, 11), 2, [(0, 1), (2, 3)]),
        ((9, 10), 1, [(9, 10)]),  # the first threads were not granted
        ((0, 8), 2, [(0,), (8,)]),
        ((0, 1, 2), 2, [(0,), (1,)]),
        ((0,), 2, []),
        ((100, 101), 2, [(100,), (101,)]),  # unknown to the topology
    ],
)
def test_one_thread_of_each_core(cores: Any, ranks: int, expected: Any) -> None:
    assert rank_cpus(cores, ranks, NODE) == expected


def test_the_environment_of_an_engine_on_cpus() -> None:
    env = thread_env(replica(0, 1, 8, 9), model(device="cpu"), NODE)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("2", "0,1")
    env = thread_env(replica(0, 1, 8, 9, pinned=False), model(device="cpu"), NODE)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "nobind")
    env = thread_env(replica(0, 1, 8, 9), model(2, device="cpu"), NODE)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "0|1")
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in env


GPUS = {
    str(i): GpuFact(visible_id=str(i), vendor="nvidia", numa=numa)
    for i, numa in enumerate((1, 1, 0, 0))
}


def test_ranks_over_numa_nodes_that_are_all_the_replicas() -> None:
    whole = replica(*range(16), gpus=("0", "1", "2", "3"))
    assert numa_argv(whole, model(4), NODE, GPUS, ()) == [
        "--numa-bind",
        *("--numa-bind-nodes", "1", "1", "0", "0"),
        *("--numa-bind-cpus", "4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11"),
    ]


@pytest.mark.parametrize(
    ("given", "tensor", "mentioned"),
    [
        # A core is somebody else's: vLLM would take it.
        (replica(*range(1, 8), *range(9, 16), gpus=("0", "2")), 2, ()),
        (replica(*range(16), gpus=("0", "2")), 2, ("--numa-bind-nodes",)),
        (replica(*range(16), gpus=("0", "1")), 2, ()),  # one NUMA node
        (replica(*range(16), gpus=("0", "7")), 2, ()),  # a GPU that nobody knows
        (replica(*range(16), gpus=("0", "2"), pinned=False), 2, ()),
    ],
)
def test_where_vllm_must_not_bind(given: Any, tensor: int, mentioned: Any) -> None:
    assert numa_argv(given, model(tensor), NODE, GPUS, mentioned) == []
