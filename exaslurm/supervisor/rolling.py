"""A rollout as a manager of the supervisor: what the supervisor sees, in a rollout's words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exaslurm.core.turns import cell_of
from exaslurm.rollout.manager import RolloutManager, Sight
from exaslurm.rollout.trouble import Job
from exaslurm.supervisor.model import Turn
from exaslurm.supervisor.observe import Look


@dataclass(frozen=True, slots=True)
class Rolling:
    """See ``loop.Manager``."""

    manager: RolloutManager

    def step(self, look: Look) -> bool:
        """Move the rollout on, if there is one; whether something else is wanted now."""
        rollout = look.wish.rollout
        if rollout is None or not {rollout.stable, rollout.candidate} <= set(look.plans):
            return False
        turns = [turn for cell in look.world.cells for turn in cell.turns]
        sight = Sight(
            now_s=look.now_s,
            generation=look.wish.desired.generation,
            rollout=rollout,
            plans=look.plans,
            jobs=list(_jobs(look, turns)),
            unclear=frozenset(
                turn.generation for turn in turns if turn.record in ("intent", "ambiguous")
            ),
            unneeded=frozenset(
                cell.name
                for cell in look.world.cells
                if rollout.candidate in rollout.lanes.get(cell.name, ())
                and rollout.candidate not in cell.lanes
            ),
            bring_up_s=look.world.bring_up_s,
        )
        return self.manager.step(sight)


def _jobs(look: Look, turns: list[Turn]) -> Iterator[Job]:
    for turn in turns:
        if turn.record not in ("submitted", "stopped"):
            continue
        state = look.states.get(turn.name)
        runs = turn.job == "running" and turn.started_s is not None
        yield Job(
            name=turn.name,
            cell=cell_of(turn.name),
            generation=turn.generation,
            lives=turn.is_live,
            serves=turn.is_live
            and turn.heard
            and turn.ready > 0
            and turn.served_s is not None
            and turn.drain_s is None,
            came_up=turn.served_s is not None,
            up_s=look.now_s - turn.started_s if runs and turn.started_s is not None else None,
            leaves=turn.drain_s is not None or turn.stopping,
            end=turn.end,
            failure=turn.failure,
            replicas=state.replicas if state is not None else (),
        )
