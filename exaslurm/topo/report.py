"""A node as JSON for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exaslurm.core.codec import to_jsonable
from exaslurm.core.topology import NodeTopology
from exaslurm.topo.nearness import islands, nearest_hcas, nearness
from exaslurm.topo.replicas import PlacedReplica
from exaslurm.topo.source import TOPOLOGY_SCHEMA


def report(topology: NodeTopology, replicas: Sequence[PlacedReplica] = ()) -> dict[str, Any]:
    """``topology`` as it is read again by ``read_any``; ``nearest_hcas`` in the order of the GPUs;
    ``islands`` are places of GPUs that direct links join."""
    near = [nearest_hcas(gpu, topology.hcas) for gpu in topology.gpus]
    return {
        "schema": TOPOLOGY_SCHEMA,
        "topology": to_jsonable(topology),
        "nearest_hcas": [
            {
                "gpu": gpu.index,
                "vendor": gpu.vendor,
                "hcas": [hca.name for hca in found],
                "nearness": nearness(gpu, found[0]) if found else None,
            }
            for gpu, found in zip(topology.gpus, near, strict=True)
        ],
        "islands": [list(island) for island in islands(topology)],
        "replicas": [to_jsonable(replica) for replica in replicas],
    }
