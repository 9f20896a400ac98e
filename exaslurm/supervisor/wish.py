"""What is wanted of a deployment, as its run directory says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from exaslurm.core.plan import Plan
from exaslurm.core.rollout import Rollout
from exaslurm.core.scale import Scale
from exaslurm.core.sharing import Counts, share
from exaslurm.core.submission import Desired
from exaslurm.core.turns import cell_of
from exaslurm.errors import DeploymentError
from exaslurm.rundir import RunDir

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the owner wants (``desired``), and what changes of it are under way."""

    desired: Desired
    rollout: Rollout | None = None
    scale: Scale | None = None

    @property
    def generations(self) -> tuple[int, ...]:
        """The generations that may have cells, oldest first."""
        found = {self.desired.generation}
        if self.rollout is not None and not self.rollout.is_over:
            found |= {self.rollout.stable, self.rollout.candidate}
        return tuple(sorted(found))


def read_wish(run_dir: RunDir) -> Wish:
    """What is wanted now. DeploymentError if nobody has said anything yet, StateError if a file
    cannot be read or understood."""
    desired = run_dir.read_desired()
    if desired is None:
        raise DeploymentError(
            f"nobody has said that {run_dir.deployment} shall run",
            remedy="submit it first",
        )
    rollout = run_dir.read_rollout()
    if rollout is not None and not rollout.concerns(desired.generation):
        rollout = None
    return Wish(
        desired=desired,
        rollout=rollout,
        scale=run_dir.read_scale(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellWish:
    """What is wanted of one cell. ``lanes``: the generations that shall each have a serving job,
    oldest first. ``targets``: by generation, how many replicas of each shard; None of one that
    shall run all that its plan has."""

    lanes: tuple[int, ...] = ()
    targets: Mapping[int, Counts | None]


def cells_wanted(
    wish: Wish, plans: Mapping[int, Plan], living: Mapping[int, frozenset[str]]
) -> dict[str, CellWish]:
    """Of every cell of every plan, what is wanted of it. ``living``: by generation, the cells that
    have a job. Pure."""
    shared = {
        number: share(plan, wish.scale, living.get(number, frozenset()))
        for number, plan in plans.items()
    }
    rollout = wish.rollout if wish.rollout is not None and not wish.rollout.is_over else None
    own = wish.desired.generation if rollout is None else rollout.stable
    found = {}
    for name in sorted({cell.name for plan in plans.values() for cell in plan.cells}):
        lanes: tuple[int, ...] = (own,)
        if rollout is not None and name in rollout.lanes:
            lanes = rollout.lanes[name]
        lanes = tuple(number for number in lanes if name in shared.get(number, {}))
        targets = {number: shared[number][name] for number in lanes}
        found[name] = CellWish(lanes=lanes, targets=targets)
    return found


def turns_of_cells(turns: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """By cell, what there is by turn."""
    found: dict[str, dict[str, T]] = {}
    for name, item in turns.items():
        found.setdefault(cell_of(name), {})[name] = item
    return found
