"""How far apart two parts of a node are, as whole numbers that can be added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from exaslurm.core.nearness import nearness, rank
from exaslurm.core.topology import Gpu, Hca, HcaPort, NodeTopology

# The kernel's own table says 10 for a node itself; where it says nothing, another is at 20.
_LOCAL = 10
_REMOTE = 20
# Any direct link is nearer than any way over PCI; of two links the one with more lanes, of two with
# the same the one whose GPUs are nearer to each other without it: their hosts' memory is too.
_LANE_STEP = 10
_PCI_STEP = 1000


@dataclass(frozen=True)
class Distances:
    """Distances inside one node; 0 is the nearest, and what is unknown is near to everything."""

    topology: NodeTopology

    @cached_property
    def _numa(self) -> Mapping[tuple[int, int], int]:
        nodes = self.topology.numa
        return {
            (one.index, other.index): one.distances[place] - _LOCAL
            for one in nodes
            if len(one.distances) == len(nodes)
            for place, other in enumerate(nodes)
        }

    @cached_property
    def _lanes(self) -> Mapping[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        gpus = self.topology.gpus
        for link in self.topology.links:
            a, b = gpus[link.a].pci, gpus[link.b].pci
            if a is not None and b is not None:
                found[a, b] = found[b, a] = found.get((a, b), 0) + link.lanes
        return found

    def numa(self, one: int | None, other: int | None) -> int:
        """Between NUMA nodes: the kernel's distance, less 10."""
        if one is None or other is None or one == other:
            return 0
        return max(1, self._numa.get((one, other), _REMOTE - _LOCAL))

    def gpus(self, one: Gpu, other: Gpu) -> int:
        """Between GPUs: a direct link by its lanes, else the way over PCI."""
        way = rank(nearness(one, other))
        lanes = self._lanes.get((one.pci or "", other.pci or ""))
        if lanes:
            return _LANE_STEP * (max(self._lanes.values()) - lanes) + way
        return _PCI_STEP * way

    def among(self, gpus: Sequence[Gpu]) -> int:
        """Of all pairs together."""
        return sum(self.gpus(one, other) for one, other in combinations(gpus, 2))

    def hca(self, hca: Hca, gpu: Gpu | None, numa: int | None) -> int:
        """To the GPU that uses it; where there is none, to a NUMA node."""
        if gpu is not None:
            return rank(nearness(gpu, hca))
        return rank("NODE" if numa is not None and numa == hca.numa else "SYS")


def port_name(pair: tuple[Hca, HcaPort]) -> str:
    """``device:port``, as NCCL and UCX call it."""
    return f"{pair[0].name}:{pair[1].number}"
