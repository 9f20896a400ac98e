"""How far apart two parts of a node are, as whole numbers that can be added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from exaslurm.core.topology import Gpu, Hca, HcaPort, NodeTopology

# The kernel's own table says 10 for a node itself; where it says nothing, another is at 20.
_LOCAL = 10
_REMOTE = 20
# As `nvidia-smi topo -m` ranks the ways over PCI: PIX, PXB, PHB, NODE, SYS.
_PIX, _PXB, _PHB, _NODE, _SYS = 1, 2, 3, 4, 5
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
        way = pci_way(one.pci_path, one.numa, other.pci_path, other.numa)
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
            return pci_way(gpu.pci_path, gpu.numa, hca.pci_path, hca.numa)
        return _way_between(numa, hca.numa)


def pci_way(
    path: Sequence[str], numa: int | None, other_path: Sequence[str], other_numa: int | None
) -> int:
    """From 1 (PIX) to 5 (SYS), by the bridges that lead to two devices from the root down."""
    if not path or not other_path or path[0] != other_path[0]:
        return _way_between(numa, other_numa)
    common = 0
    for one, other in zip(path, other_path, strict=False):
        if one != other:
            break
        common += 1
    if common == 1:
        return _PHB
    # A switch is a bridge up and one down to each device: within one switch, each has one of its
    # own at most.
    own = max(len(path), len(other_path)) - common
    return _PIX if own <= 1 else _PXB


def _way_between(numa: int | None, other: int | None) -> int:
    return _NODE if numa is None or other is None or numa == other else _SYS


def port_name(pair: tuple[Hca, HcaPort]) -> str:
    """``device:port``, as NCCL and UCX call it."""
    return f"{pair[0].name}:{pair[1].number}"
