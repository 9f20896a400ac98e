"""Writes down which nodes the next job shall do without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from exaslurm.controller.cell import Cell
from exaslurm.core.codec import dumps, loads
from exaslurm.core.exclusion import (
    EXCLUDED_S,
    SILENT_EXCLUDED_S,
    ExcludedNode,
    ExcludedNodes,
)
from exaslurm.errors import StateError
from exaslurm.util.files import make_private_dir, read_text
from exaslurm.util.iothread import IoThread

_FILE_S = 10.0


class Exclusions:
    """``excluded/<cell>.json`` of this cell, which outlives the job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = ExcludedNodes()
        # A job that lives for long does not find the same out again when the time is over.
        self._noted: set[tuple[str, str]] = set()

    async def recall(self, files: IoThread) -> None:
        """What earlier jobs of the cell have found; one that cannot be read is begun anew."""
        try:
            await files.run(make_private_dir, self.path.parent, timeout_s=_FILE_S)
            text = await files.run(read_text, self.path, timeout_s=_FILE_S)
            self._known = loads(ExcludedNodes, text, where=str(self.path))
        except StateError:
            self._known = ExcludedNodes()

    def note(
        self, cell: Cell, now: float, wall_s: float, keep: Callable[[Path, str], None]
    ) -> None:
        """Keep what the cell knows now (``now``: monotonic, ``wall_s``: Unix seconds)."""
        job = cell.marker.job_id
        unfit = [item for item in cell.members.unfit(now) if item not in self._noted]
        self._noted.update(unfit)
        found = [
            ExcludedNode(
                node=node, reason=reason, job_id=job, since_s=wall_s,
                until_s=wall_s + _lasts_s(cell, node),
            )
            for node, reason in unfit
        ]  # fmt: skip
        found += [
            ExcludedNode(
                node=node, reason=drained.reason, job_id=job,
                since_s=drained.since_s, until_s=drained.until_s,
            )
            for node, drained in cell.members.drained.items()
            if drained.until_s is not None
        ]  # fmt: skip
        joined = self._known.joined(found, wall_s)
        if joined != self._known:
            self._known = joined
            keep(self.path, dumps(joined, indent=1))


def _lasts_s(cell: Cell, node: str) -> float:
    """For how long a node is left out that a cell cannot use."""
    member = cell.members.nodes[node]
    is_silent = member.report is None and member.ended is None
    return SILENT_EXCLUDED_S if is_silent else EXCLUDED_S
