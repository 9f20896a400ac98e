"""What the cell's Ray is, from what agents and the Ray driver say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from exaslurm.core.cell import RayCellState, RayNodeStatus, RayTarget
from exaslurm.core.plan import RayPlan

_PAUSE_MIN_S, _PAUSE_MAX_S = 2.0, 60.0
_LONG_LIVED_S = 300.0


class RayView:
    """Epochs of Ray in this cell, and how far the present one is.

    A new epoch is a new Ray cluster on the same nodes: agents end theirs and start again.
    """

    def __init__(self, plan: RayPlan, *, epoch: int, now: float) -> None:
        self.enabled = plan.enabled
        self.epoch = max(1, epoch)
        self.cause: str | None = None
        self.seconds: float | None = None
        self.alive: frozenset[str] = frozenset()
        self.connected = False
        self._start_timeout_s = plan.start_timeout_s
        self._gate_deadline: float | None = None
        self._started_s: float | None = None
        self._address: tuple[str, int] | None = None
        self._epoch_since = now
        self._pause_s = 0.0
        self._due_s: float | None = None

    @property
    def target(self) -> RayTarget | None:
        """What nodes shall join; None before the head has said where it is."""
        if not self.enabled or self._address is None:
            return None
        return RayTarget(epoch=self.epoch, head_address=self._address[0], gcs_port=self._address[1])

    def recall(self, epoch: int, seconds: float | None) -> None:
        """What an earlier controller knew."""
        if epoch >= self.epoch:
            self.epoch, self.seconds = epoch, seconds

    def on_head(self, status: RayNodeStatus, address: str, gcs_port: int, now: float) -> None:
        """What the head's agent says."""
        self._address = (address, gcs_port)
        if status.epoch > self.epoch:  # given by a controller before this one
            self._begin(status.epoch, now)
        if status.epoch < self.epoch or not self.enabled:
            return
        if self._started_s is None and status.state in ("starting", "up"):
            self._started_s = now - (status.seconds or 0.0)
        elif status.state == "up" and status.seconds is not None and self.seconds is None:
            self._started_s = min(self._started_s or now, now - status.seconds)
        if status.state == "failed":
            self.lost(f"the Ray head failed: {status.cause or 'it gave no reason'}", now)

    def on_nodes(self, names: Iterable[str], wanted: frozenset[str], now: float) -> None:
        """Names of the nodes that Ray calls alive, and of those that should be."""
        self.alive = frozenset(names)
        self.connected = True
        if self.complete(wanted):
            self.cause = None
            if self.seconds is None and self._started_s is not None:
                self.seconds = now - self._started_s

    def lost(self, cause: str, now: float) -> None:
        """The head, the GCS or the way to it is gone: a new epoch is due, after a pause that
        grows while Ray does not live for long."""
        if self._due_s is not None:
            return
        self.cause = cause
        self.connected = False
        self.alive = frozenset()
        if now - self._epoch_since > _LONG_LIVED_S:
            self._pause_s = 0.0
        self._due_s = now + self._pause_s
        self._pause_s = min(max(_PAUSE_MIN_S, 2 * self._pause_s), _PAUSE_MAX_S)

    def advance(self, now: float) -> bool:
        """Begin the new epoch if one is due; true then."""
        if self._due_s is None or now < self._due_s:
            return False
        self._begin(self.epoch + 1, now)
        return True

    def complete(self, wanted: frozenset[str]) -> bool:
        """Whether every wanted node is in the cluster."""
        return self.enabled and self.connected and bool(wanted) and wanted <= self.alive

    def gate_open(self, wanted: frozenset[str], now: float) -> bool:
        """Whether engines may start: Ray is complete, or there was time enough. Asked first when
        the nodes are there; the time runs from then."""
        if not self.enabled or self.complete(wanted):
            return True
        if self._gate_deadline is None:
            self._gate_deadline = now + self._start_timeout_s
        return now >= self._gate_deadline

    def state(self, wanted: frozenset[str], now: float) -> RayCellState:
        """For ``CellState``."""
        if not self.enabled:
            return RayCellState(state="off")
        late = self._gate_deadline is not None and now >= self._gate_deadline
        word: Literal["starting", "complete", "partial", "failed"] = "starting"
        if self.complete(wanted):
            word = "complete"
        elif self._due_s is not None:
            word = "failed"
        elif self.connected and (late or self.seconds is not None):
            word = "partial"
        target = self.target
        return RayCellState(
            state=word,
            epoch=self.epoch,
            nodes_alive=len(self.alive & wanted),
            nodes_wanted=len(wanted),
            address=f"{target.head_address}:{target.gcs_port}" if target else None,
            cause=self.cause or self._absent(wanted, word),
            seconds=None if self.seconds is None else round(self.seconds, 3),
        )

    def _absent(self, wanted: frozenset[str], word: str) -> str | None:
        lacking = sorted(wanted - self.alive)
        return f"not in Ray: {', '.join(lacking[:8])}" if word == "partial" and lacking else None

    def _begin(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.alive = frozenset()
        self.connected = False
        self._epoch_since = now
        self._started_s = self.seconds = self._due_s = None
