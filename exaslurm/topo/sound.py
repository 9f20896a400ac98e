"""What a topology that somebody gave has to be, before anything is drawn or placed by it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, TypeVar

from exaslurm.core.topology import NodeTopology

T = TypeVar("T")


def sound(topology: NodeTopology) -> NodeTopology:
    """The topology in printable words. Raises ValueError, naming the value, where its parts do not
    fit each other."""
    for core in topology.cores:
        if not core.cpus or min(core.cpus) < 0:
            raise ValueError(f"a core with the CPUs {list(core.cpus)}")
    cpu, times = next(iter(Counter(topology.cpus).most_common(1)), (0, 0))
    if times > 1:
        raise ValueError(f"CPU {cpu} is in {times} cores")
    indexes = [node.index for node in topology.numa]
    for node in topology.numa:
        if node.index < 0 or indexes.count(node.index) > 1:
            raise ValueError(f"the NUMA node {node.index} is there more than once, or below 0")
        if node.mem_mib < 0 or min(node.cpus, default=0) < 0:
            raise ValueError(f"the NUMA node {node.index} has less than nothing")
        if node.distances and len(node.distances) != len(indexes):
            raise ValueError(
                f"the NUMA node {node.index} has {len(node.distances)} distances to "
                f"{len(indexes)} nodes"
            )
    for link in topology.links:
        if not 0 <= link.a < link.b < len(topology.gpus):
            raise ValueError(
                f"a link between the GPUs {link.a} and {link.b} of {len(topology.gpus)}"
            )
    return _printable(topology)


def _printable(value: T) -> T:
    """Texts with what a terminal would obey, or no file takes, replaced."""
    known: Any = value
    if isinstance(known, str):
        known = "".join(letter if letter.isprintable() else "\ufffd" for letter in known)
    elif isinstance(known, tuple):
        known = tuple(_printable(part) for part in known)
    elif dataclasses.is_dataclass(known) and not isinstance(known, type):
        parts = {part.name: getattr(known, part.name) for part in dataclasses.fields(known)}
        known = dataclasses.replace(known, **{name: _printable(x) for name, x in parts.items()})
    return known  # type: ignore[no-any-return]
