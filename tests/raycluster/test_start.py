"""What a node is told to run as its Ray: pure, no Ray needed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exaslurm.core import ports
from exaslurm.core.cell import RayTarget
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.fabric import FabricPlan
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import RayPlan
from exaslurm.core.topology import Hca, HcaPort, NodeTopology
from exaslurm.errors import PreflightFailed
from exaslurm.raycluster.hook import trim
from exaslurm.raycluster.start import SOCKET_PATH_MAX, head_command, worker_command
from exaslurm.rundir import RunDir

NODE_DIR = Path("/tmp/xs-6001-41-1")
TARGET = RayTarget(epoch=3, head_address="10.0.0.1", gcs_port=20001)
FACTS = NodeFacts(
    node="n2",
    het_group=1,
    order=0,
    address="10.0.0.2",
    agent_port=20510,
    port_base=20500,
    cpus=(0, 1),
    cpus_granted=16,
    mem_mib=4096,
)


def plan(layout: str = "het") -> Any:
    return SimpleNamespace(
        layout=layout,
        ray=RayPlan(enabled=True, start_timeout_s=60.0, object_store_mib=512),
        models=(SimpleNamespace(max_replicas_per_node=4),),
        node=SimpleNamespace(fabric=FabricPlan()),
    )


def worker(facts: NodeFacts = FACTS, run_dir: Path = Path("/state/d")) -> ExecSpec:
    return worker_command(plan(), facts, TARGET, RunDir(run_dir), NODE_DIR)


def head(layout: str = "het", facts: NodeFacts = FACTS) -> ExecSpec:
    return head_command(plan(layout), facts, RunDir(Path("/state/d")), NODE_DIR, 1)


def options(spec: ExecSpec) -> dict[str, str]:
    words = spec.argv[spec.argv.index("start") + 1 :]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


def test_every_port_is_in_the_nodes_own_block_and_used_once() -> None:
    used: list[int] = []
    for name, value in options(head()).items():
        if name.endswith("port"):
            used.append(int(value))
    first, last = used.index(20700), used.index(20949)
    assert last == first + 1
    assert len(used) == len(set(used)) == 11
    assert all(20500 <= port < 21000 for port in used)
    engines = {ports.engine_port(20500, slot) for slot in range(ports.MAX_ENGINES)}
    assert not engines & set(used)
    assert not engines & set(range(20700, 20950))


def test_counts_are_those_granted_not_the_machines() -> None:
    given = options(worker())
    assert given["num-cpus"] == "16"
    assert given["num-gpus"] == "0"
    assert given["object-store-memory"] == str(512 * 1024**2)
    assert given["memory"] == str((4096 - 512) * 1024**2)
    assert json.loads(given["resources"]) == {"exa_slot": 4}
    assert given["node-ip-address"] == "10.0.0.2"
    assert given["address"] == "10.0.0.1:20001"
    assert options(worker(dataclasses.replace(FACTS, cpus_granted=None)))["num-cpus"] == "2"


def test_a_head_that_carries_no_replicas_has_no_slots() -> None:
    assert json.loads(options(head("het"))["resources"]) == {}
    assert json.loads(options(head("single"))["resources"]) == {"exa_slot": 4}


def test_stays_in_the_foreground_and_quiet() -> None:
    spec = head()
    assert "--block" in spec.argv
    assert "stop" not in spec.argv
    assert spec.env["RAY_USAGE_STATS_ENABLED"] == "0"
    assert spec.env["RAY_prestart_worker_first_driver"] == "0"
    assert options(spec)["include-dashboard"] == "false"
    assert spec.env["TMPDIR"] == str(NODE_DIR)


def test_the_token_is_named_by_its_file_only(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "d")
    run_dir.make()
    run_dir.ray_token.write_text("sesame")
    spec = worker(run_dir=run_dir.path)
    assert spec.env["RAY_AUTH_MODE"] == "token"
    assert spec.env["RAY_AUTH_TOKEN_PATH"] == str(run_dir.ray_token)
    assert "sesame" not in " ".join([*spec.argv, *spec.env.values()])


def test_labels() -> None:
    facts = dataclasses.replace(
        FACTS,
        switch="leaf 1/a",
        labels={"nvme": "yes", "ib_gbps": "200", "switch": "leaf 1/a"},
        topology=NodeTopology(
            host="n2",
            hcas=tuple(
                Hca(
                    name=f"mlx5_{i}",
                    fabric="infiniband",
                    ports=(HcaPort(number=1, state=state, rate_gbps=rate, link_layer="IB"),),
                )
                for i, (state, rate) in enumerate([("ACTIVE", 200), ("DOWN", 400)])
            ),
        ),
    )
    labels = dict(part.split("=") for part in options(worker(facts))["labels"].split(","))
    assert labels["exa-node"] == "n2"
    assert labels["ib_gbps"] == "200"
    assert labels["switch"] == "leaf-1-a"
    assert labels["nvme"] == "yes"
    assert labels["role"] == "worker"
    assert labels["epoch"] == "3"
    # What a node's ports carry is a number to take shares of: those that are up, all together.
    assert json.loads(options(worker(facts))["resources"]) == {"exa_slot": 4, "ib_gbps": 200}


@pytest.mark.parametrize(
    ("vendor", "ids", "variable", "value", "gone"),
    [
        ("nvidia", ["0", "1"], "CUDA_VISIBLE_DEVICES", "0,1", "ROCR_VISIBLE_DEVICES"),
        ("amd", ["2", "3"], "HIP_VISIBLE_DEVICES", "2,3", "ROCR_VISIBLE_DEVICES"),
        ("intel", ["0"], "ONEAPI_DEVICE_SELECTOR", "level_zero:0", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_one_variable_names_the_gpus(
    vendor: str, ids: list[str], variable: str, value: str, gone: str
) -> None:
    gpus = tuple(GpuFact(visible_id=name, vendor=vendor) for name in ids)
    spec = worker(dataclasses.replace(FACTS, gpus=gpus))
    assert options(spec)["num-gpus"] == str(len(ids))
    assert spec.env[variable] == value
    assert gone in spec.unset
    assert variable not in spec.unset


def test_sockets_fit_or_the_site_is_told() -> None:
    fits = Path("/tmp/xs-4294967295-4294967295-1")
    temp = options(head_command(plan(), FACTS, RunDir(Path("/s/d")), fits, 1))["temp-dir"]
    socket = "/session_2026-11-29_20-37-33_039137_4194304/sockets/plasma_store"
    assert len(temp + socket) <= SOCKET_PATH_MAX
    deep = Path("/lustre/project_123456789/scratch/someone/tmp/xs-6001-41-1")
    with pytest.raises(PreflightFailed, match="107") as caught:
        head_command(plan(), FACTS, RunDir(Path("/s/d")), deep, 1)
    assert "node.tmp" in str(caught.value.remedy)


def test_the_hook_leaves_out_the_client_server() -> None:
    params = SimpleNamespace(ray_client_server_port=10001)
    trim(params, head=False)
    assert params.ray_client_server_port == 10001
    trim(params, head=True)
    assert params.ray_client_server_port is None
