"""What each node shall run, with versions that only grow. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import DesiredState, RayTarget

_EMPTY = DesiredState(version=0, ray=None, engines=())


class DesiredBook:
    """The desired state of every node."""

    def __init__(self) -> None:
        self._version = 0
        self._states: dict[str, DesiredState] = {}

    def get(self, node: str) -> DesiredState:
        """What the node shall run; version 0 if nothing was ever said."""
        return self._states.get(node, _EMPTY)

    def set(
        self,
        node: str,
        *,
        ray: RayTarget | None,
        engines: Iterable[ReplicaBinding],
        stop: bool,
        kill: Iterable[str] = (),
        grace_s: float | None = None,
    ) -> bool:
        """Say what a node shall run; true if that is something new."""
        old = self.get(node)
        new = dataclasses.replace(
            old, ray=ray, engines=tuple(engines), stop=stop, kill=tuple(kill), grace_s=grace_s
        )
        if new == old and old.version > 0:
            return False
        self._version += 1
        self._states[node] = dataclasses.replace(new, version=self._version)
        return True

    def seen(self, node: str, version: int) -> bool:
        """A node has seen this version. If an earlier controller gave it and ours is older, ours
        goes above it; true then."""
        if version <= self._version:
            return False
        self._version = version
        if node not in self._states:
            return False
        self._version += 1
        self._states[node] = dataclasses.replace(self._states[node], version=self._version)
        return True
