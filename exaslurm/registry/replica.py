"""A replica as routers see it, and where routers get replicas from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from exaslurm.core.cell import EngineLoad

# Control characters, and what has no place in UTF-8: half of a pair, which JSON can say.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_text(value: object) -> bool:
    """Whether a name can be shown: one that cannot would break every page that it is on."""
    return isinstance(value, str) and _NO_TEXT.search(value) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica: how to reach it, and whether it takes requests.

    ``ready`` is what its cell says; ``draining`` and ``sleeping`` replicas live but shall get
    nothing new. ``url`` is the engine's base address. ``cause`` tells why it is not ready.
    ``version`` is that of its model (empty: there is one only), ``switch`` the failure domain above
    its node (empty: not known). ``key`` is the engine's own, where it is not the deployment's;
    ``engine_model`` the one name that the engine knows its model by, where it does not know its
    served names.
    """

    id: str
    cell: str
    model: str
    served_names: tuple[str, ...]
    url: str
    node: str
    ready: bool
    draining: bool = False
    sleeping: bool = False
    state: str = ""
    cause: str | None = None
    pid: int | None = None
    max_model_len: int | None = None
    weight: float = 1.0
    priority: int = 0
    simulated: bool = False
    version: str = ""
    switch: str = ""
    key: str | None = field(default=None, repr=False)
    engine_model: str = ""

    @property
    def takes_requests(self) -> bool:
        return self.ready and not self.draining and not self.sleeping


Listener = Callable[[Sequence[Replica]], None]
LoadListener = Callable[[Mapping[str, EngineLoad]], None]


class ReplicaSource(Protocol):
    """Where a router learns of replicas: the registry, or a list."""

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with all replicas now and after each change (in the event loop)."""

    def subscribe_loads(self, listener: LoadListener) -> None:
        """Call ``listener`` with the figures of engines, by replica, as they become known. Those
        of an engine that says the same again are told again every few seconds, so that the age of
        figures is the time since they were told."""

    def recheck(self, replica: str) -> None:
        """Requests to this replica failed: find out soon what it is about."""

    def describe(self) -> Mapping[str, Any]:
        """JSON data for the router's ``/status``."""


class StaticSource:
    """Replicas that are known from the start; ``replace`` changes them."""

    def __init__(self, replicas: Sequence[Replica] = ()) -> None:
        self._replicas = tuple(replicas)
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)
        listener(self._replicas)

    def replace(self, replicas: Sequence[Replica]) -> None:
        self._replicas = tuple(replicas)
        for listener in self._listeners:
            listener(self._replicas)

    def subscribe_loads(self, listener: LoadListener) -> None:
        """Nobody asks these replicas for figures."""

    def recheck(self, replica: str) -> None:
        """Nobody asks these replicas how they are."""

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "static"}
