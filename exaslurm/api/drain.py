"""Emptying a replica, a node or a cell of a running deployment."""

from __future__ import annotations

import dataclasses
import difflib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exaslurm.core.cell import CellState, ReplicaStatus
from exaslurm.core.drain import DrainRequest
from exaslurm.core.exclusion import EXCLUDED_S
from exaslurm.core.submission import Submission
from exaslurm.core.turns import cell_of, number_of
from exaslurm.errors import DeploymentError, NotReadyError, StateError, WaitTimeout
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.client import fetch_states, post_drain_request
from exaslurm.registry.read import read_records
from exaslurm.rundir import RunDir
from exaslurm.submit import records
from exaslurm.submit.lock import deployment_lock
from exaslurm.util.user import user_and_home

What = Literal["replica", "node", "cell"]
_HTTP_S, _ALL_S = 5.0, 20.0
_POLL_S, _POLL_SUBMISSIONS_S = 1.0, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was asked for. ``cells``: the jobs (by turn) that were asked; ``before``: the replicas
    concerned as they were, by name."""

    what: What
    names: tuple[str, ...]
    reason: str
    cells: tuple[str, ...]
    before: Mapping[str, ReplicaStatus]


def drain(
    run_dir: RunDir,
    what: What,
    names: Sequence[str],
    *,
    environ: Mapping[str, str],
    reason: str | None = None,
    excluded_s: float = EXCLUDED_S,
) -> Drained:
    """Ask the deployment to empty replicas, nodes or cells; returns when it knows.

    Later jobs do without drained nodes for ``excluded_s`` (0: they need not). Raises
    DeploymentError for a name that is not there (and then nothing was asked), or where only another
    host can ask; NotReadyError if a controller that would know gives no answer, StateError if the
    request cannot be written down.
    """
    run_dir.require()
    desired = run_dir.read_desired()
    if desired is None or not desired.run:
        raise DeploymentError(
            f"deployment {run_dir.deployment!r} is stopped", remedy="exaslurm submit starts it"
        )
    user = user_and_home(environ)[0]
    why = f"drained by {user}" + (f": {reason}" if reason else "")
    if what == "cell":
        return _drain_cells(run_dir, names, user, why)
    records.require_here(run_dir.generation(desired.generation), socket.gethostname())
    return _Cells(run_dir).drain(what, names, why, excluded_s)


class _Cells:
    """The cells whose controllers answer now."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._key = read_secret(run_dir.internal_key)
        found = read_records(run_dir)
        self._urls = {record.cell: record.state_url for record in found}
        self.states = fetch_states(self._urls, self._key, timeout_s=_HTTP_S, all_s=_ALL_S)
        self.silent = sorted(set(self._urls) - set(self.states))

    def drain(
        self, what: Literal["replica", "node"], names: Sequence[str], why: str, excluded_s: float
    ) -> Drained:
        found: dict[str, list[str]] = {}
        for name in names:
            cells = [cell for cell, state in self.states.items() if name in _names(state, what)]
            if not cells:
                raise self._unknown(what, name)
            for cell in cells:
                found.setdefault(cell, []).append(name)
        before = {
            replica.id: replica
            for cell in found
            for replica in self.states[cell].replicas
            if replica.id in names or set(replica.nodes or (replica.node,)) & set(names)
        }
        for cell, mine in found.items():
            asked = DrainRequest(
                replicas=tuple(mine) if what == "replica" else (),
                nodes=tuple(mine) if what == "node" else (),
                reason=why,
                excluded_s=excluded_s,
            )
            post_drain_request(self._urls[cell], self._key, asked, timeout_s=_HTTP_S)
        _note(self._run_dir, what, names, why)
        return Drained(what=what, names=tuple(names), reason=why, cells=tuple(found), before=before)

    def _unknown(self, what: str, name: str) -> DeploymentError | NotReadyError:
        known = sorted({item for state in self.states.values() for item in _names(state, what)})
        if self.silent:
            return NotReadyError(
                f"no {what} {name!r} in the cells that answer; the controller of "
                f"{', '.join(self.silent)} gives no answer",
                remedy="exaslurm status tells what is wrong with it; try again when it answers",
            )
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        shown = ", ".join(known[:16]) + (f" and {len(known) - 16} more" if known[16:] else "")
        return DeploymentError(
            f"deployment {self._run_dir.deployment!r} has no {what} {name!r}",
            remedy=f"{hint}there are {shown}" if known else "no cell is up yet",
        )


def _names(state: CellState, what: str) -> set[str]:
    if what == "replica":
        return {replica.id for replica in state.replicas}
    return {node.node for node in state.nodes}


def _drain_cells(run_dir: RunDir, names: Sequence[str], user: str, why: str) -> Drained:
    """Ask the supervisor, in the records of the jobs, to have successors take over from them."""
    with deployment_lock(run_dir):
        live = _live(run_dir)
        chosen = [_turn(run_dir, live, name) for name in names]
        for item in chosen:
            if item.job_id == "local":
                raise DeploymentError(
                    f"{item.cell} has no job that another could follow (site local)",
                    remedy="exaslurm stop, then exaslurm submit",
                )
        for item in chosen:
            if item.asked_s is None:
                asked = dataclasses.replace(item, asked_s=time.time(), asked_by=user)
                records.write_submission(run_dir.generation(item.generation), asked)
    _note(run_dir, "cell", names, why)
    cells = tuple(item.cell for item in chosen)
    return Drained(what="cell", names=tuple(names), reason=why, cells=cells, before={})


def _live(run_dir: RunDir) -> dict[str, Submission]:
    """Submissions of jobs that may run and are not on their way out, by turn."""
    return {
        name: item
        for number in run_dir.generations()
        for name, item in records.read_submissions(run_dir.generation(number)).items()
        if item.state == "submitted" and item.ended_s is None and item.drain_s is None
    }


def _turn(run_dir: RunDir, live: Mapping[str, Submission], name: str) -> Submission:
    """The job that is meant by the name of a turn or of a cell: of a cell, the one that serves."""
    if name in live:
        return live[name]
    mine = [item for turn, item in live.items() if cell_of(turn) == name]
    served = [item for item in mine if item.served_s is not None] or mine
    if not served:
        raise DeploymentError(
            f"deployment {run_dir.deployment!r} has no cell {name!r} with a job that runs",
            remedy=f"there are {', '.join(sorted(live)) or 'none'}",
        )
    return max(served, key=lambda item: number_of(item.cell))


def _note(run_dir: RunDir, what: What, names: Sequence[str], why: str) -> None:
    generation = run_dir.current()
    plan = records.read_plan(generation) if generation is not None else None
    records.add_history(
        run_dir,
        "drain asked",
        generation=generation.number if generation is not None else 0,
        plan_hash=plan.hash if plan is not None else "",
        extra={what: ", ".join(names), "reason": why},
    )


def wait_drained(
    run_dir: RunDir,
    drained: Drained,
    *,
    timeout_s: float,
    talk: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until a drained replica serves again, a node carries nothing, or the job of a cell has
    ended. WaitTimeout that says what is left; what was asked for goes on all the same."""
    deadline = time.monotonic() + timeout_s
    told = None
    while True:
        left = _left(run_dir, drained)
        if not left:
            return
        if left != told:
            talk(f"waiting for {left}")
            told = left
        if time.monotonic() >= deadline:
            raise WaitTimeout(
                f"not drained after {timeout_s:.0f} s: {left}",
                remedy="it goes on; exaslurm status shows how far it is",
            )
        time.sleep(_POLL_SUBMISSIONS_S if drained.what == "cell" else _POLL_S)


def _left(run_dir: RunDir, drained: Drained) -> str:
    """What is not over yet, in words; empty if nothing is left."""
    if drained.what == "cell":
        known = {
            name: item
            for number in run_dir.generations()
            for name, item in records.read_submissions(run_dir.generation(number)).items()
        }
        # A stop, too, ends it. A file system that is away says nothing.
        left = [n for n in drained.cells if n not in known or known[n].state == "submitted"]
        return ", ".join(f"the end of {name}" for name in left)
    try:
        cells = _Cells(run_dir)
    except StateError:
        return "the run directory"
    silent = [name for name in drained.cells if name in cells.silent]
    if silent:
        return f"an answer of {', '.join(silent)}"
    states = [cells.states[name] for name in drained.cells if name in cells.states]
    if drained.what == "replica":
        now = {replica.id: replica for state in states for replica in state.replicas}
        waits = [name for name in drained.names if _is_under_way(drained.before[name], now)]
        return ", ".join(f"{name} ({now[name].state})" for name in waits)
    return ", ".join(
        f"{node.engines} engine(s) on {node.node}"
        for state in states
        for node in state.nodes
        if node.node in drained.names and node.engines and node.state not in ("silent", "lost")
    )


def _is_under_way(before: ReplicaStatus, now: Mapping[str, ReplicaStatus]) -> bool:
    """Whether a replica has not come up again since it was drained."""
    after = now.get(before.id)
    if after is None or after.state == "stopped":
        return False  # it is not wanted any more
    same = (after.node, after.pid) == (before.node, before.pid)
    return after.state != "ready" or same
