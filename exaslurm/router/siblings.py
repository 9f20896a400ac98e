"""The figures of the other processes of a router, for whichever of them is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Protocol

from exaslurm.errors import StateError
from exaslurm.router.exposition import Family, dump, load

log = logging.getLogger(__name__)


class Siblings(Protocol):
    """The other processes of this router."""

    def write(self, snapshot: bytes, *, taken_s: float | None = None) -> None:
        """Leave the own figures for them, as they were at ``taken_s`` (monotonic). May block for a
        moment. StateError."""

    def read(self) -> tuple[list[bytes], list[bytes]]:
        """Snapshots of their figures: of those that live, and of those that have ended. May
        block for a moment. StateError."""


async def others(
    siblings: Siblings | None, own: Sequence[Family] = ()
) -> tuple[list[list[Family]], list[list[Family]]]:
    """Their figures: of those that live, and of those that have ended.

    ``own`` is left for them before: what has been answered once is in the answer of whichever
    process is asked next, and no counter falls.
    """
    if siblings is None:
        return [], []
    taken_s = time.monotonic()

    def exchange() -> tuple[list[list[Family]], list[list[Family]]]:
        if own:
            siblings.write(dump(own), taken_s=taken_s)
        live, ended = siblings.read()
        return _readable(live), _readable(ended)

    try:
        return await asyncio.to_thread(exchange)
    except StateError as error:
        log.warning("figures of this process alone: %s", error)
        return [], []


def total(families: Sequence[Sequence[Family]], name: str) -> float:
    """The sum of all samples of one counter or gauge."""
    return sum(
        numbers[0]
        for process in families
        for family in process
        if family.name == name
        for _, numbers in family.samples
    )


def _readable(snapshots: Sequence[bytes]) -> list[list[Family]]:
    found = []
    for raw in snapshots:
        with contextlib.suppress(ValueError):  # of another version, during a restart
            found.append(load(raw))
    return found
