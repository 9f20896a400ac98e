"""Where processes run: read from /proc of real ones, judged against the plan."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exaslurm.agent.affinity import ProcessPlace, look, off_plan, places_of
from exaslurm.bootstrap.pinned_exec import bind_memory
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.topology import Core, NodeTopology

# A parent with a thread and a child, as engines have them.
TREE = (
    "import subprocess, sys, threading, time; "
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    "print(child.pid, flush=True); time.sleep(60)"
)


def binding(*cores: int, mem_nodes: tuple[int, ...] = (), pinned: bool = True) -> ReplicaBinding:
    return ReplicaBinding(
        id="c000-r0000", model="m", shard="a", node="n", address="127.0.0.1", port=20020, slot=0,
        cores=cores, pinned=pinned, mem_nodes=mem_nodes, gpus=(), hca=None,
    )  # fmt: skip


@pytest.fixture
def tree() -> Iterator[list[int]]:
    """Parent and child, pinned to the first CPU that we have."""
    core = min(os.sched_getaffinity(0))
    parent = subprocess.Popen(
        [sys.executable, "-c", TREE],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield [parent.pid, child]
    for pid in (child, parent.pid):
        os.kill(pid, 9)
    parent.wait()
    parent.stdout.close()


def test_a_tree_that_runs_where_it_should(tree: list[int]) -> None:
    core = min(os.sched_getaffinity(0))
    seen = look(binding(core), tree)
    assert seen is not None
    assert (seen.cpus, seen.off_plan) == ((core,), None)
    assert [place.pid for place in places_of(tree, memory=False)] == sorted(tree)


def test_a_mask_that_was_changed_from_outside(tree: list[int]) -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        pytest.skip("needs two CPUs")
    os.sched_setaffinity(tree[1], set(ours[:2]))
    seen = look(binding(ours[0]), tree)
    assert seen is not None
    assert seen.cpus == tuple(ours[:2])
    assert seen.off_plan is not None
    assert f"planned for CPUs {ours[0]}, but process {tree[1]} (" in seen.off_plan
    assert "more of its processes" not in seen.off_plan


def test_a_single_thread_counts(tree: list[int]) -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        pytest.skip("needs two CPUs")
    threads = [int(name) for name in os.listdir(f"/proc/{tree[0]}/task")]
    os.sched_setaffinity(max(threads), {ours[1]})
    seen = look(binding(ours[0]), tree)
    assert seen is not None
    assert seen.off_plan is not None
    assert f"process {tree[0]} (" in seen.off_plan


def test_memory_policy_of_a_real_process() -> None:
    """Bound as engines are, and read back."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, (bind_memory([0]) or "bound").encode())
        time.sleep(60)
        os._exit(0)
    try:
        if os.read(read, 200) != b"bound":
            pytest.skip("no NUMA node can be bound to here")
        (place,) = places_of([pid], memory=True)
        assert place.mem_nodes == (0,)
        assert place.cpus == tuple(sorted(os.sched_getaffinity(0)))
        assert off_plan(binding(*place.cpus, mem_nodes=(0,)), [place]) is None
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_what_is_gone_is_not_seen() -> None:
    assert look(binding(0), [2**22 + 1]) is None
    assert look(binding(0), []) is None


def place(pid: int, *cpus: int, mem_nodes: tuple[int, ...] = ()) -> ProcessPlace:
    return ProcessPlace(pid=pid, name="vllm", cpus=cpus, mem_nodes=mem_nodes)


@pytest.mark.parametrize(
    ("planned", "places", "said"),
    [
        (binding(0, 1), [place(7, 0), place(8, 1)], None),
        (binding(0, 1), [place(7, 0), place(8, 0)],
         "planned for CPUs 0-1, but it may run on 0 only"),
        (binding(0, 1), [place(7, 0, 1), place(8, 1, 2, 3), place(9, 4)],
         "planned for CPUs 0-1, but process 8 (vllm) may run on 1-3, and 1 more of its processes"),
        (binding(0, pinned=False), [place(7, 1)], None),
        (binding(0, mem_nodes=(1,)), [place(7, 0, mem_nodes=(1,))], None),
        (binding(0, mem_nodes=(1,)), [place(7, 0)],
         "memory planned on NUMA node 1, but process 7 (vllm) takes it from any"),
        (binding(0, mem_nodes=(0, 1)), [place(7, 0, mem_nodes=(0,))], None),
        (binding(0, mem_nodes=(0, 1)), [place(7, 0, mem_nodes=(1, 2))],
         "memory planned on NUMA node 0-1, but process 7 (vllm) takes it from 1-2"),
    ],
)  # fmt: skip
def test_what_is_said(planned: ReplicaBinding, places: list[ProcessPlace], said: str) -> None:
    assert off_plan(planned, places) == said


def test_one_thread_of_each_core_is_enough() -> None:
    cores = tuple(Core(cpus=(cpu, cpu + 2), package=0, numa=0) for cpu in range(2))
    topology = NodeTopology(host="n", cores=cores)
    planned = binding(0, 1, 2, 3)
    assert off_plan(planned, [place(7, 0), place(8, 3)], topology) is None
    assert off_plan(planned, [place(7, 0, 2)], topology) == (
        "planned for CPUs 0-3, but it may run on 0,2 only"
    )


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("7f00 bind:0-1 anon=3 N0=3", (0, 1)),
        ("7f00 bind=static:2 anon=3", (2,)),
        ("7f00 default file=/bin/sh mapped=1", ()),
        ("7f00 interleave:0-3 anon=1", ()),
        ("7f00 prefer:1 anon=1", ()),
    ],
)
def test_policies_as_the_kernel_writes_them(
    tmp_path: Path, line: str, nodes: tuple[int, ...]
) -> None:
    root = tmp_path / "42"
    (root / "task/42").mkdir(parents=True)
    for path in (root / "status", root / "task/42/status"):
        path.write_text("Name:\tVLLM::EngineCor\nCpus_allowed_list:\t0-3,8\n")
    (root / "numa_maps").write_text(line + "\n")
    (found,) = places_of([42], memory=True, proc=tmp_path)
    assert found == ProcessPlace(
        pid=42, name="VLLM::EngineCor", cpus=(0, 1, 2, 3, 8), mem_nodes=nodes
    )
