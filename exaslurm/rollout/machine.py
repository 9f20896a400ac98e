"""Where a rollout goes from here: state, what is seen, and time in; state out. Pure.

Cells of the candidate come up in the order of the plan, one first, then ``surge`` at a time. They
get their share of the requests when they serve, up to what the step asks for; then as many cells of
the stable generation go, so that at most ``surge`` cells more than before have a job. A step's
share that the cells can carry is held for a time and a number of requests. After the last step the
rest of the stable generation goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from exaslurm.core.canary import Canary
from exaslurm.core.rollout import Rollout

Lanes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known at this moment.

    ``serving``: cells where a job of the candidate serves, or none is needed for the load there is.
    ``stable_lives``, ``candidate_lives``: jobs of it may exist. ``trouble``: why the candidate
    cannot come up. ``worse``: why its answers are worse than the old ones. ``requests``: how many
    it has got since the step began.
    """

    serving: Set[str] = field(default_factory=frozenset)
    stable_lives: bool = True
    candidate_lives: bool = True
    trouble: str | None = None
    worse: str | None = None
    requests: int = 0


def advance(rollout: Rollout, seen: Seen, now_s: float) -> Rollout:
    """The rollout as it is from now on; the same one if nothing is to change."""
    if rollout.state == "rising":
        wrong = seen.trouble or seen.worse
        after = undone_for(rollout, wrong) if wrong is not None else _risen(rollout, seen, now_s)
    elif rollout.state == "finishing" and not seen.stable_lives:
        after = replace(rollout, state="done", note=None)
    elif rollout.state == "undoing" and not seen.candidate_lives:
        after = replace(rollout, state="undone", note=None)
    else:
        after = rollout
    return replace(after, lanes=lanes(after))


def undone_for(rollout: Rollout, reason: str) -> Rollout:
    """It is taken back; ``lanes`` follow with the next step."""
    return replace(rollout, state="undoing", reason=reason, share_percent=0.0, note=None)


def _risen(rollout: Rollout, seen: Seen, now_s: float) -> Rollout:
    up = sum(name in seen.serving for name in rollout.candidate_cells[: rollout.cells])
    if up < rollout.cells:
        return replace(rollout, note=None)
    wanted = rollout.steps_percent[rollout.step]
    able = 100.0 * rollout.cells / len(rollout.candidate_cells)
    share = min(wanted, able)
    if share > rollout.share_percent:
        return replace(rollout, share_percent=share, since_s=now_s, note=None)
    if able < wanted:
        needed = math.ceil(wanted / 100 * len(rollout.candidate_cells) - 1e-9)
        cells = min(needed, rollout.cells + rollout.policy.surge)
        return replace(rollout, carried=rollout.cells, cells=cells, note=None)
    return _held(rollout, seen, now_s)


def _held(rollout: Rollout, seen: Seen, now_s: float) -> Rollout:
    """The step's share is reached: hold it, then go on."""
    policy = rollout.policy
    held_s = now_s - rollout.since_s
    few = bool(rollout.names) and seen.requests < policy.min_requests
    if held_s < (2 * policy.hold_s if few else policy.hold_s):
        late = few and held_s >= policy.hold_s
        fewer = f"the hold time is over, but fewer than {policy.min_requests} requests have come"
        return replace(rollout, note=fewer if late else None)
    note = None
    if few:
        note = (
            f"in {held_s:.0f} s only {seen.requests} of {policy.min_requests} requests came to the "
            "new version: gone on all the same"
        )
    if rollout.step + 1 < len(rollout.steps_percent):
        return replace(rollout, step=rollout.step + 1, note=note)
    return replace(rollout, state="finishing", note=note)


def lanes(rollout: Rollout) -> Lanes:
    """Of which generations each of its cells shall have a serving job."""
    stable, candidate = rollout.stable_cells, rollout.candidate_cells
    wanted = frozenset[str]()
    kept = frozenset(stable)
    if rollout.state in ("finishing", "done"):
        wanted, kept = frozenset(candidate), frozenset[str]()
    elif rollout.state == "rising":
        wanted = frozenset(candidate[: rollout.cells])
        kept = frozenset(stable[len(stable) - kept_cells(rollout) :])
    found = {}
    for name in sorted(rollout.lanes):
        old = (rollout.stable,) if name in kept else ()
        new = (rollout.candidate,) if name in wanted else ()
        found[name] = (*old, *new)
    return found


def kept_cells(rollout: Rollout) -> int:
    """How many cells of the stable generation stay beside ``rollout.cells`` of the candidate's, of
    which those after the first ``rollout.carried`` may not serve yet."""
    stable = len(rollout.stable_cells)
    left = math.ceil((1 - rollout.carried / len(rollout.candidate_cells)) * stable - 1e-9)
    return min(stable, left + rollout.policy.surge - (rollout.cells - rollout.carried))


def shares(rollout: Rollout, before: Canary) -> Canary:
    """``canary.json`` as it shall be: ``before`` with the shares of this rollout's names."""
    others = {name: parts for name, parts in before.weights.items() if name not in rollout.names}
    if not rollout.names:
        return before
    if rollout.is_over:
        return replace(before, weights=others, by=rollout.divided_by)
    new = 100.0 if rollout.state == "finishing" else rollout.share_percent
    own = {name: {old: 100.0 - new, to: new} for name, (old, to) in rollout.names.items()}
    return replace(before, weights={**others, **own}, by=rollout.policy.by)
