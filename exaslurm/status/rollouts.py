"""A rollout as ``status`` shows it, and the jobs of both its generations."""

from __future__ import annotations

from collections.abc import Mapping

from exaslurm.core import codec
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.rollout import Pair, Rollout, RolloutFigures
from exaslurm.core.submission import Submission
from exaslurm.core.turns import cell_of, number_of
from exaslurm.rundir import RunDir
from exaslurm.status.model import RolloutStatus
from exaslurm.util.files import read_text


def turns_to_show(
    plans: Mapping[int, Plan],
    submissions: Mapping[str, Submission],
    lanes: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[tuple[CellPlan, int], ...]:
    """Of each cell the jobs that may live, oldest first, with their generations; the newest one
    where none does. One that was never submitted is shown as such. ``lanes``: the generations that
    are wanted of each cell, during a rollout; of others only jobs that live are shown."""
    found: list[tuple[str, int]] = []
    for number, plan in sorted(plans.items()):
        own = [name for name, item in submissions.items() if item.generation == number]
        for cell in plan.cells:
            names = sorted((name for name in own if cell_of(name) == cell.name), key=number_of)
            ended = ("stopped", "refused")
            shown = [name for name in names if submissions[name].state not in ended]
            if not shown and (lanes is None or number in lanes.get(cell.name, ())):
                shown = names[-1:] or [cell.name]
            found += [(name, number) for name in shown]
    found.sort(key=lambda item: (cell_of(item[0]), number_of(item[0])))
    return tuple((plans[number].cell(name), number) for name, number in found)


def rollout_status(
    run_dir: RunDir, rollout: Rollout | None, generation: int
) -> RolloutStatus | None:
    """What there is to say of a rollout: while it is under way, and of the last one if it was taken
    back."""
    if rollout is None or not (
        rollout.concerns(generation) or (rollout.state == "undone" and rollout.stable == generation)
    ):
        return None
    counted: Mapping[str, Pair] = {}
    silent: tuple[str, ...] = ()
    path = run_dir.rollout_figures
    if path.exists():
        figures = codec.loads(RolloutFigures, read_text(path), where=str(path))
        if figures.candidate == rollout.candidate:
            counted, silent = figures.counted, figures.silent
    return RolloutStatus(
        stable=rollout.stable,
        candidate=rollout.candidate,
        state=rollout.state,
        step=rollout.step,
        steps_percent=rollout.steps_percent,
        share_percent=rollout.share_percent,
        sentence=rollout.sentence,
        reason=rollout.reason,
        figures={name: pair.sentence for name, pair in counted.items()},
        silent=silent,
    )
