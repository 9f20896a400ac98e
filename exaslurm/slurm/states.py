"""Job states of Slurm, grouped by what they mean for somebody who waits."""

from __future__ import annotations

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
                     "RESV_DEL_HOLD", "SPECIAL_EXIT"})  # fmt: skip
RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
                     "SUSPENDED"})  # fmt: skip
# GONE is ours: the controller answered that it has no such job, so it ended some time ago.
GONE = "GONE"
FINISHED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                      "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", GONE})  # fmt: skip


def normal(state: str) -> str:
    """``CANCELLED by 6001`` and ``RUNNING+`` (as some outputs have it) to the bare word."""
    words = state.split()
    return words[0].rstrip("+").upper() if words else ""


def combined(states: list[str]) -> str:
    """The one state of a job with several components.

    A component that still runs keeps the job running; a job has ended when all have, and then a
    failure outweighs a success.
    """
    for group in (RUNNING, PENDING):
        for state in states:
            if state in group:
                return state
    unlike = [state for state in states if state not in ("COMPLETED", GONE)]
    return (unlike or states)[0]
