"""The change of a deployment from one generation to another while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# canary: a cell of the new generation serves beside the old ones. moving: cells go over one by one.
# done: the new generation is the deployment's. undoing: what there is of the new one is ended.
# undone: nothing of it is left, and the old one is the deployment's.
RolloutState = Literal["canary", "moving", "done", "undoing", "undone"]
OVER: frozenset[RolloutState] = frozenset(("done", "undone"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """``rollout.json``: from generation ``stable`` to ``candidate``.

    ``lanes``: of which generations a cell shall have a serving job, oldest first; none: the cell
    shall not run. Cells that are not named are as the stable generation plans them.
    """

    schema: Literal["exaslurm/rollout/1"] = "exaslurm/rollout/1"
    stable: int
    candidate: int
    state: RolloutState
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reason: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state in OVER
