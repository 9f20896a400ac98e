"""Drafting a site config, with Slurm's answers as they were recorded and this machine as a node."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from exaslurm.api.site_draft import draft_site
from exaslurm.errors import QueryFailed, SiteError
from exaslurm.site.load import load_site
from exaslurm.slurm.client import Slurm

NODE = (
    "NodeName={name} CPUEfctv=16 CPUTot=16 AvailableFeatures=a100 Gres={gres} RealMemory=65536 "
    "State=IDLE ThreadsPerCore=1 Partitions=gpu"
)
PARTITION = "PartitionName=gpu Default=YES MaxNodes=4 MaxTime=UNLIMITED MinNodes=0 State=UP"
CONFIG = "ClusterName = {name}\nSLURM_VERSION = 24.11.5\nSchedulerType = sched/backfill\n"


class Recorded(Slurm):
    """Slurm as it answered once."""

    def __init__(self, nodes: str, cluster: str = "big") -> None:
        super().__init__({})
        config = CONFIG.format(name=cluster)
        self.answers = {"node": nodes, "partition": PARTITION, "config": config}

    def query(self, argv: Sequence[str]) -> str:
        return self.answers[argv[2]]


def test_the_node_that_one_is_on_is_looked_at(tmp_path: Path) -> None:
    here = socket.gethostname().split(".", 1)[0]
    text = draft_site(None, environ={}, slurm=Recorded(NODE.format(name=here, gres="(null)")))
    (tmp_path / "big.yaml").write_text(text)
    site = load_site("big", {"EXASLURM_SITE_CONFIG": str(tmp_path), "HOME": "/nonexistent"})
    assert (site.node_kinds["cpu"].cpus, site.partitions["gpu"].max_nodes) == (16, 4)


def test_what_another_node_showed(tmp_path: Path) -> None:
    shown = {
        "host": "g1",
        "numa": [{"index": 0, "kind": "cpu", "cpus": [0, 1, 2, 3], "mem_mib": 1}],
        "gpus": [{"index": 0, "vendor": "nvidia", "numa": 0}],
    }
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"schema": "exaslurm/topology/1", "topology": shown}))
    slurm = Recorded(NODE.format(name="g1", gres="gpu:a100:1"))
    text = draft_site("mine", topologies=[file], environ={}, slurm=slurm)
    assert 'gpu_cpus: ["0-3"]' in text
    assert "device: cuda\n" in text


def test_no_name_and_no_nodes() -> None:
    with pytest.raises(SiteError, match="'a b' is no name for a site"):
        draft_site(None, environ={}, slurm=Recorded("", "a b"))
    with pytest.raises(QueryFailed, match="nothing to draft from"):
        draft_site(None, environ={}, slurm=Recorded("No nodes in the system"))
