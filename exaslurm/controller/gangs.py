"""A replica over several nodes starts, fails and ends whole. Pure: the caller brings the time.

Its parts know each other's connections of one start only. When one of them ends, the others wait
for it, or end too, sooner or later; so all are ended at once, and when nothing is left of any, all
are started again: on the same nodes, or on others if one of them is gone or the gang has failed
there too often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import EngineStatus
from exaslurm.core.plan import ModelPlan

RESTART_MIN_S, RESTART_MAX_S = 1.0, 60.0
_LONG_LIVED_S = 300.0


class Gang:
    """The parts of one replica, by the name of their node. While ``failure`` is set it is ended,
    and then waits for its next start, not before ``due_s``."""

    def __init__(self, binding: ReplicaBinding, now: float = 0.0) -> None:
        self.binding = binding
        self.failure: str | None = None
        self.failed_node: str | None = None
        self.due_s = 0.0
        self._parts: dict[str, EngineStatus] = {}
        self._ended: set[str] = set()
        self._began_s = now
        self._pause_s = 0.0
        self._ended_by: str | None = None

    def on_part(self, node: str, status: EngineStatus, now: float) -> None:
        """What a node says about its part; words about an earlier start are not heard."""
        if self.failure is not None or status.attempt != self.binding.attempt:
            return
        self._parts[node] = status
        if status.phase == "failed":
            rank = self.binding.on_node(node).rank
            self.fail(f"rank {rank} on {node}: {status.cause or 'no reason given'}", node, now)

    def on_gone(self, node: str) -> None:
        """Nothing of the gang is left on a node, which knows that nothing shall run there."""
        if self.failure is not None:
            self._ended.add(node)

    def fail(self, cause: str, node: str, now: float) -> None:
        """A part has failed, or its node does not answer: the first cause counts. The next start
        has another number at once, so that nothing of this one can be taken for a part of it."""
        if self.failure is not None:
            return
        self.failure, self.failed_node = cause, node
        self._parts.clear()
        if now - self._began_s > _LONG_LIVED_S:
            self._pause_s = 0.0
        self.due_s = now + self._pause_s
        self._pause_s = min(max(RESTART_MIN_S, 2 * self._pause_s), RESTART_MAX_S)
        self.binding = dataclasses.replace(self.binding, attempt=self.binding.attempt + 1)

    def is_over(self, joined: Collection[str]) -> bool:
        """Whether nothing of the failed start is left on any node that answers."""
        nodes = set(self.binding.nodes)
        return self.failure is not None and nodes & set(joined) <= self._ended

    def begin(self, binding: ReplicaBinding, now: float) -> None:
        """Start again, there."""
        self.binding = binding
        self._ended_by, self.failure, self.failed_node = self.failure, None, None
        self._parts.clear()
        self._ended.clear()
        self._began_s = now

    def part(self, node: str) -> EngineStatus | None:
        """What a node has said about its part of the present start."""
        return self._parts.get(node)

    def status(self) -> EngineStatus | None:
        """The gang as one engine: rank 0's, which is the one that answers. None until its node
        has said something. Until it is healthy again, the cause is what ended the last start."""
        if self.failure is not None:
            return EngineStatus(
                replica=self.binding.id,
                phase="failed",
                port=self.binding.port,
                restarts=self.binding.attempt,
                cause=self.failure,
            )
        first = self._parts.get(self.binding.node)
        if first is None:
            return None
        return dataclasses.replace(
            first,
            restarts=self.binding.attempt,
            off_plan=self._off_plan(),
            cause=first.cause or (None if first.phase == "healthy" else self._ended_by),
        )

    def _off_plan(self) -> str | None:
        """What the first part with something to say says."""
        for part in self.binding.parts():
            status = self._parts.get(part.node)
            if status is not None and status.off_plan is not None:
                return f"rank {part.rank} on {part.node}: {status.off_plan}"
        return None


def processes_of(binding: ReplicaBinding, model: ModelPlan) -> tuple[ReplicaBinding, ...]:
    """The parts of a replica that agents start: all of them, but with vLLM's Ray executor the
    first one only, which has Ray start its workers."""
    return binding.parts() if model.executor == "mp" else binding.parts()[:1]
