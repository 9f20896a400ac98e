"""How early a successor is submitted, and how long after a failure the next try is. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exaslurm.supervisor.model import Turn

# A successor is submitted at least this long before the end of the job that it replaces, or half of
# that job's time if that is shorter.
LEAD_FLOOR_S = 600.0
# Observed times are no promise.
LEAD_MARGIN = 1.25
# How long it takes to learn of a successor, to drain the old job, and to end it, where no job has.
HAND_OVER_S = 30.0
PERCENTILE = 0.9

# A job that served for so long was good: whatever ended it, the next one starts at once.
PROVEN_S = 600.0
RETRY_S, MOST_RETRY_S = 30.0, 1800.0
REFUSED_S, MOST_REFUSED_S = 30.0, 900.0

# Ends that are nobody's failure.
_ORDINARY_ENDS = frozenset({"TIMEOUT", "PREEMPTED", "DEADLINE"})


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 without any."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def expected_s(turns: Sequence[Turn]) -> float:
    """How long a new job is likely to take until it serves: queue and bring-up, as observed."""
    waits = [
        max(0.0, turn.started_s - turn.submitted_s)
        for turn in turns
        if turn.started_s is not None and turn.submitted_s is not None
    ]
    ups = [
        max(0.0, turn.served_s - turn.started_s)
        for turn in turns
        if turn.served_s is not None and turn.started_s is not None
    ]
    return percentile(waits, PERCENTILE) + percentile(ups, PERCENTILE)


def handing_over_s(turns: Sequence[Turn]) -> float:
    """How long the old job is likely to go on when the new one serves, as observed."""
    drains = [
        max(0.0, turn.ended_s - turn.drain_s)
        for turn in turns
        if turn.ended_s is not None and turn.drain_s is not None
    ]
    return max(HAND_OVER_S, percentile(drains, PERCENTILE))


def lead_s(turn: Turn, turns: Sequence[Turn], poll_s: float) -> float:
    """How long before its end a job's successor is to be submitted, given the deployment's turns
    so far."""
    limit_s = math.inf
    # A maintenance says nothing of how much time the job was given.
    if turn.limit_end_s is not None and turn.started_s is not None and turn.ends_for is None:
        limit_s = max(0.0, turn.limit_end_s - turn.started_s)
    wanted = LEAD_MARGIN * (expected_s(turns) + handing_over_s(turns)) + 2 * poll_s
    return min(max(wanted, min(LEAD_FLOOR_S, limit_s / 2)), limit_s)


def over_s(turn: Turn) -> float | None:
    """When a job ended, or Slurm began to end it; None if it has not come to that."""
    return turn.ending_since_s if turn.is_live else turn.ended_s


def failures(turns: Sequence[Turn]) -> int:
    """How many of a cell's newest jobs failed in a row. One that was replaced, ran to its limit or
    served for long did not."""
    count = 0
    for turn in reversed(turns):
        if turn.record == "refused":
            continue
        ended_s = over_s(turn)
        if ended_s is None or not _failed(turn, ended_s):
            break
        count += 1
    return count


def _failed(turn: Turn, ended_s: float) -> bool:
    if turn.drain_s is not None or turn.end in _ORDINARY_ENDS:
        return False
    return turn.served_s is None or ended_s - turn.served_s < PROVEN_S


def next_try_s(turns: Sequence[Turn]) -> float:
    """When the next job of a cell may be submitted; in the past: now.

    The first failure is tried again at once. After a refusal, one try is made as soon as another
    job of the cell has ended, since that may have made room.
    """
    due_s = -math.inf
    count = failures(turns)
    ends = [ended_s for turn in turns if (ended_s := over_s(turn)) is not None]
    if count > 1:
        due_s = max(ends) + _doubled(RETRY_S, count - 2, MOST_RETRY_S)
    newest = turns[-1] if turns else None
    if newest is not None and newest.record == "refused" and newest.refusals:
        ended_since = any(ended_s > newest.created_s for ended_s in ends)
        if not ended_since:
            wait_s = _doubled(REFUSED_S, newest.refusals - 1, MOST_REFUSED_S)
            due_s = max(due_s, newest.created_s + wait_s)
    return due_s


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(first_s * 2.0 ** min(times, 30), most_s)
