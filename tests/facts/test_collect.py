"""All facts of a node in one value."""

from __future__ import annotations

import os
from pathlib import Path

from exaslurm.core.codec import dumps, loads
from exaslurm.core.facts import NodeFacts
from exaslurm.facts.collect import collect, node_name
from tests.tools.plans import make_environment

STEP = {
    "SLURMD_NODENAME": "nid001",
    "SLURM_NODEID": "3",
    "SLURM_CPUS_ON_NODE": "64",
    "SLURM_MEM_PER_NODE": "65536",
    "SLURM_TOPOLOGY_ADDR": "root.leaf7.nid001",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
    "ROCR_VISIBLE_DEVICES": "0,1",
}


def facts_of(environ: dict[str, str], sys: Path, proc: Path, local: str | None) -> NodeFacts:
    node = make_environment(local=local)
    return collect(
        node, environ, het_group=1, kind="gpu", address="10.0.0.1", agent_port=20510,
        port_base=20500, sys=sys, proc=proc, cpus=[3, 1],
    )  # fmt: skip


def test_a_node_of_a_cluster(sys: Path, proc: Path, tmp_path: Path) -> None:
    facts = facts_of(STEP, sys, proc, str(tmp_path))
    assert (facts.node, facts.order, facts.het_group) == ("nid001", 3, 1)
    assert (facts.cpus, facts.cpus_granted, facts.mem_mib) == ((1, 3), 64, 65536)
    assert [gpu.numa for gpu in facts.gpus] == [0, 1]
    assert (facts.switch, facts.switches) == ("leaf7", ("root", "leaf7"))
    assert facts.labels == {
        "kind": "gpu", "arch": os.uname().machine, "numa": "2", "ib_gbps": "200", "nvme": "true",
        "fabric": "infiniband",
        "switch": "leaf7", "gpu-vendor": "amd", "gpu-type": "Instinct-MI250X",
    }  # fmt: skip
    assert loads(NodeFacts, dumps(facts), where="x") == facts


def test_outside_slurm(tmp_path: Path, proc: Path) -> None:
    facts = facts_of({}, tmp_path, proc, None)
    assert facts.node == node_name({}) != ""
    assert (facts.order, facts.cpus_granted, facts.gpus, facts.switch) == (0, None, (), None)
    assert facts.labels["ib_gbps"] == "0"
    assert facts.labels["nvme"] == "false"
    assert facts.labels["fabric"] == "ethernet"
