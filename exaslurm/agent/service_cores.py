"""Agent, Ray and controller keep off the cores that replicas have to themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Sequence

from exaslurm.agent.children import Children
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.numbers import ranges
from exaslurm.errors import ExaslurmError

log = logging.getLogger(__name__)


class ServiceCores:
    """``cpus`` are those that the step may use; ``names`` the children of init that are no
    engines. What they start later begins where they are."""

    def __init__(self, children: Children, cpus: Sequence[int], names: Sequence[str]) -> None:
        self._children = children
        self._cpus = cpus
        self._names = names
        self._spare = frozenset(cpus)

    def want(self, replicas: Iterable[ReplicaBinding]) -> None:
        """These replicas run here. Where they leave nothing, the others use what there is."""
        taken = {cpu for replica in replicas if replica.pinned for cpu in replica.cores}
        spare = frozenset(self._cpus) - taken or frozenset(self._cpus)
        if spare != self._spare:
            log.info("agent and Ray are on CPUs %s", ranges(spare))
        self._spare = spare

    async def run(self, every_s: float) -> None:
        """For ever: whoever is elsewhere is brought here."""
        while True:
            await self.settle()
            await asyncio.sleep(every_s)

    async def settle(self) -> None:
        """Once."""
        pids = {os.getpid()}
        for name in self._names:
            child = self._children.get(name)
            if child is not None and child.exit is None:
                with contextlib.suppress(ExaslurmError):
                    pids.update(await self._children.members(child))
        for pid in pids:
            confine(pid, self._spare)


def confine(pid: int, cpus: frozenset[int]) -> None:
    """All threads of a process to these CPUs; one that ends meanwhile does not matter."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(int(thread)) != cpus:
                    os.sched_setaffinity(int(thread), cpus)
