"""Looking at a deployment: its run directory, Slurm (once for all jobs), and its cells."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from exaslurm.core.cell import CellRecord, CellState
from exaslurm.core.codec import loads
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.submission import JobNotice, Submission
from exaslurm.core.turns import cell_of, number_of
from exaslurm.errors import CommandNotFound, QueryFailed, StateError
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.client import fetch_states
from exaslurm.registry.read import read_records
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm import states
from exaslurm.slurm.types import JobInfo
from exaslurm.submit import records
from exaslurm.submit.survey import job_key
from exaslurm.supervisor.model import CellView, JobState, Turn, World
from exaslurm.supervisor.wall_time import Calendar, planned_limit_s, relimited, taken_by
from exaslurm.supervisor.wish import Wish, cells_wanted, read_wish, turns_of_cells
from exaslurm.util.files import is_there, read_text

log = logging.getLogger(__name__)

_HTTP_TIMEOUT_S = 3.0
_ALL_CELLS_S = 20.0
# Slurm may send the signal before the time limit up to a minute earlier than asked.
_SIGNAL_EARLY_S = 90.0


class Queue(Protocol):
    """What is asked of Slurm here (see ``slurm.client.Slurm``)."""

    def jobs(self, ids: list[str]) -> dict[str, JobInfo]: ...

    def time_limits(self, ids: list[str]) -> dict[str, dict[str, float | None]]: ...


Ask = Callable[[Mapping[str, str], str], Mapping[str, CellState]]
"""Addresses of controllers by turn, and the internal key -> the states of those that answered."""


def ask_controllers(urls: Mapping[str, str], key: str) -> dict[str, CellState]:
    """Ask controllers, all at once; those that do not answer are left out."""
    return fetch_states(urls, key, timeout_s=_HTTP_TIMEOUT_S, all_s=_ALL_CELLS_S)


Ended = dict[int, dict[str, Submission]]
"""By generation and turn, submissions whose jobs have ended, as they were read."""


def read_turns(
    run_dir: RunDir, generations: Iterable[int], ended: Ended | None = None
) -> dict[str, Submission]:
    """Every submission of these generations, by turn. StateError if one of them cannot be read:
    what is not known must not be taken for something that is not there. ``ended``: see
    ``records.read_submissions``."""
    found: dict[str, Submission] = {}
    for number in sorted(generations):
        known = None if ended is None else ended.setdefault(number, {})
        generation = run_dir.generation(number)
        found |= records.read_submissions(generation, must_exist=True, ended=known)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A deployment at one moment, with everything that is known of it. ``states``: what the
    controllers that answer say, by turn. ``plans`` are those of the generations that are wanted or
    have something left that may run. ``records``: what the registry holds, by turn."""

    now_s: float
    wish: Wish
    plans: Mapping[int, Plan]
    submissions: Mapping[str, Submission]
    states: Mapping[str, CellState]
    world: World
    records: Mapping[str, CellRecord] = field(default_factory=dict)


class Observer:
    """Looks again and again, and remembers since when something is as it is."""

    def __init__(
        self,
        run_dir: RunDir,
        slurm: Queue,
        *,
        ask: Ask = ask_controllers,
        calendar: Callable[[], Calendar] = Calendar,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._slurm = slurm
        self._ask = ask
        self._calendar = calendar
        self._clock = clock
        self._monotonic = monotonic
        self._plans: dict[int, Plan] = {}
        # Generations of which nothing runs any more: the highest number of a turn, by cell.
        self._over: dict[int, dict[str, int]] = {}
        self._ended: Ended = {}
        self._since: dict[tuple[str, str], float] = {}
        self._answer: tuple[dict[str, JobInfo], str | None] = {}, None

    def plan_of(self, generation: int) -> Plan:
        """The plan of a generation. StateError if it is not there."""
        if generation not in self._plans:
            plan = records.read_plan(self._run_dir.generation(generation))
            if plan is None:
                raise StateError(f"generation {generation} of {self._run_dir.path} holds no plan")
            self._plans[generation] = plan
        return self._plans[generation]

    def look(self, *, ask_slurm: bool = True) -> Look:
        """The deployment as it is now. StateError if the run directory cannot be read,
        DeploymentError if nobody has said that it shall run. Without ``ask_slurm`` jobs are as
        they were when it was asked last; of later ones nothing is known."""
        wish = read_wish(self._run_dir)
        numbers = self._generations(wish)
        plans = {number: self.plan_of(number) for number in numbers}
        plan = plans[wish.desired.generation]
        limits = [each.timeouts for each in plans.values()]
        world = World(
            wanted=wish.desired.run and plan.layout != "local",
            cells=(),
            poll_s=plan.poll_floor_s,
            drain_s=max(limit.drain_s for limit in limits),
            bring_up_s=max(map(_bring_up_s, plans.values())),
            scaled=plan.autoscale is not None,
        )
        look = Look(
            now_s=self._clock(), wish=wish, plans=plans, submissions={}, states={}, world=world
        )
        if not world.wanted:
            return look
        submissions = {
            name: item
            for name, item in read_turns(self._run_dir, numbers, self._ended).items()
            if _has_cell(plans[item.generation], name)
        }
        if ask_slurm:
            self._answer = self._jobs(submissions)
        jobs, error = self._answer
        written = {record.cell: record for record in read_records(self._run_dir)}
        heard = self._heard(submissions, jobs, written)
        turns = {
            name: self._turn(plans[item.generation].cell(name), item, jobs, heard.get(name))
            for name, item in submissions.items()
        }
        if error is None:
            turns = self._with_maintenance(plans, submissions, jobs, turns)
        self._forget(submissions)
        look = dataclasses.replace(look, submissions=submissions, states=heard, records=written)
        return self._arranged(look, turns, error)

    def again(self, look: Look) -> Look:
        """The same moment with what is wanted now; Slurm and the cells are not asked again."""
        wish = read_wish(self._run_dir)
        if not set(wish.generations) <= set(look.plans):
            return self.look()
        turns = {turn.name: turn for cell in look.world.cells for turn in cell.turns}
        wanted = look.world.wanted and wish.desired.run
        world = dataclasses.replace(look.world, wanted=wanted)
        look = dataclasses.replace(look, wish=wish, world=world)
        return self._arranged(look, turns, world.slurm_error)

    def _arranged(self, look: Look, turns: Mapping[str, Turn], error: str | None) -> Look:
        """The look with its turns in their cells."""
        living: dict[int, set[str]] = {}
        for turn in turns.values():
            if turn.is_live and turn.drain_s is None:
                living.setdefault(turn.generation, set()).add(cell_of(turn.name))
        alive = {number: frozenset(names) for number, names in living.items()}
        grouped = turns_of_cells(turns)
        cells = tuple(
            CellView(
                name=name,
                turns=tuple(sorted(grouped.get(name, {}).values(), key=lambda t: t.number)),
                lanes=wanted.lanes,
                targets=wanted.targets,
                past=self._past(look.wish, name),
            )
            for name, wanted in cells_wanted(look.wish, look.plans, alive).items()
            if grouped.get(name) or not self._by_hand(look.wish, name)
        )
        world = dataclasses.replace(look.world, cells=cells, slurm_error=error)
        return dataclasses.replace(look, world=world)

    def _past(self, wish: Wish, cell: str) -> int:
        """The highest number that a turn of the cell has had in a generation that is newer than one
        that is wanted, and over: its logs, history and what a late process of it may write bear
        that name."""
        first = min(wish.generations)
        newer = (turns for number, turns in self._over.items() if number > first)
        return max((turns.get(cell, 0) for turns in newer), default=0)

    def _by_hand(self, wish: Wish, cell: str) -> bool:
        """Whether somebody has started the cell's script without ``submit``."""
        generation = self._run_dir.generation(wish.desired.generation)
        return _is_left(generation, cell, generation.bootstrap_marker(cell))

    def _generations(self, wish: Wish) -> list[int]:
        """Those that are wanted, and those of which something may still run."""
        found = set(wish.generations)
        for number in self._run_dir.generations():
            if number in found or number in self._over:
                continue
            known = self._submissions(self._run_dir.generation(number))
            if all(item.state in ("stopped", "refused") for item in known.values()):
                turns = sorted(known, key=number_of)
                self._over[number] = {cell_of(turn): number_of(turn) for turn in turns}
            else:
                found.add(number)
        for number in found:
            self._over.pop(number, None)
        return sorted(found)

    def _submissions(self, generation: GenerationDir) -> dict[str, Submission]:
        """Those of a generation; none if a killed command left it without a place for them.
        StateError where that cannot be told: a generation that is taken for over is not looked at
        again."""
        if not is_there(generation.path / "submissions"):
            return {}
        return records.read_submissions(generation, must_exist=True)

    def _jobs(self, submissions: Mapping[str, Submission]) -> tuple[dict[str, JobInfo], str | None]:
        """What Slurm knows of the jobs that may live, by their keys; or why it says nothing."""
        ids = [
            job_key(item)
            for item in submissions.values()
            if item.state == "submitted" and item.job_id
        ]
        if not ids:
            return {}, None
        try:
            return self._slurm.jobs(ids), None
        except (QueryFailed, CommandNotFound) as error:
            return {}, str(error)

    def _with_maintenance(
        self,
        plans: Mapping[int, Plan],
        submissions: Mapping[str, Submission],
        jobs: Mapping[str, JobInfo],
        turns: Mapping[str, Turn],
    ) -> dict[str, Turn]:
        """The turns with what a maintenance means for their time."""
        calendar, now_s, found = self._calendar(), self._clock(), dict(turns)
        concerned = bool(calendar.maintenance)
        waiting = {
            name: job_key(submissions[name])
            for name, turn in turns.items()
            if turn.job == "pending" and (concerned or turn.limited_by is not None)
        }
        limits: Mapping[str, Mapping[str, float | None]] = {}
        if waiting:
            try:
                limits = self._slurm.time_limits(list(waiting.values()))
            except (QueryFailed, CommandNotFound):
                limits = {}  # they are asked for again in the next round
        for name, turn in turns.items():
            cell = plans[turn.generation].cell(name)
            job = jobs.get(job_key(submissions[name]))
            if name in waiting:
                own = list(limits.get(waiting[name], {}).values())
                limit = relimited(
                    cell, own, calendar, now_s, is_shortened=turn.limited_by is not None
                )
                found[name] = dataclasses.replace(turn, relimit=limit)
            elif concerned and turn.job == "running" and job is not None:
                taking = taken_by(cell, job.nodes, calendar, now_s=now_s, end_s=turn.limit_end_s)
                if taking is not None:
                    found[name] = dataclasses.replace(
                        turn, limit_end_s=taking.start_s, ends_for=taking.name
                    )
        return found

    def _heard(
        self,
        submissions: Mapping[str, Submission],
        jobs: Mapping[str, JobInfo],
        written: Mapping[str, CellRecord],
    ) -> Mapping[str, CellState]:
        """The states of those cells whose controllers answer."""
        urls = {
            name: written[name].state_url
            for name, item in submissions.items()
            if name in written and _may_answer(item, jobs, written[name])
        }
        found = self._ask(urls, read_secret(self._run_dir.internal_key)) if urls else {}
        return {
            name: state
            for name, state in found.items()
            if state.cell == name and state.job_id == submissions[name].job_id
        }

    def _turn(
        self,
        cell: CellPlan,
        item: Submission,
        jobs: Mapping[str, JobInfo],
        state: CellState | None,
    ) -> Turn:
        name, generation = item.cell, self._run_dir.generation(item.generation)
        job = jobs.get(job_key(item)) if item.state == "submitted" else None
        known = _job_state(item, job, state)
        turn = Turn(
            name=name,
            number=number_of(name),
            generation=item.generation,
            record=item.state,
            job=known,
            created_s=item.created_s,
            submitted_s=item.submitted_s,
            started_s=item.started_s,
            served_s=item.served_s,
            drain_s=item.drain_s,
            ended_s=item.ended_s,
            end=item.end,
            refusals=item.refusals,
            message=item.message,
            asked_s=item.asked_s,
            asked_by=item.asked_by,
            limited_by=item.limited_by,
        )
        if known == "ended":
            return dataclasses.replace(
                turn,
                ended_s=item.ended_s or (job.end_s if job else None),
                end=item.end or (job.state if job else None),
                failure=_text(generation, name),
            )
        if item.state != "submitted":
            return turn
        if known == "running" and job is not None:
            turn = dataclasses.replace(
                turn, started_s=item.started_s or job.start_s, limit_end_s=job.end_s
            )
        suspended = job is not None and job.state == "SUSPENDED"
        turn = dataclasses.replace(
            turn,
            suspended_since_s=self._note(turn, "suspended", suspended),
            ending_since_s=self._note(turn, "ending", state is None and _only_ends(job)),
            reason=job.reason if job is not None and known == "pending" else "",
            notice_s=_notice(generation, cell, turn),
        )
        return self._with_state(turn, cell, state)

    def _with_state(self, turn: Turn, cell: CellPlan, state: CellState | None) -> Turn:
        """The turn with what its controller says, or with its silence."""
        came_up = turn.served_s is not None and turn.job == "running"
        if state is None:
            self._note(turn, "nodes", False)
            self._note(turn, "replicas", False)
            silent_s = self._note(turn, "silent", came_up)
            return dataclasses.replace(turn, silent_since_s=silent_s)
        self._note(turn, "silent", False)
        ready = sum(replica.state == "ready" for replica in state.replicas)
        # A cell that ends is not as it was, on purpose.
        counted = came_up and turn.drain_s is None and state.phase != "stopping"
        few_nodes = counted and _too_few_nodes(cell, state)
        few = (counted or turn.served_s is None) and ready < _floor(cell, state.targets)
        loads = [replica.load for replica in state.replicas]
        busy = None
        if loads and all(load is not None for load in loads):
            busy = sum(load.running + load.waiting for load in loads if load is not None)
        living = [replica for replica in state.replicas if replica.state != "stopped"]
        return dataclasses.replace(
            turn,
            heard=True,
            ready=ready,
            serving=state.phase == "serving",
            busy=busy,
            draining=all(replica.state == "draining" for replica in living),
            stopping=state.phase == "stopping",
            failure=state.cause if state.phase == "failed" else None,
            targets=state.targets,
            shards=frozenset(f"{r.model}:{r.shard}" for r in state.replicas if r.state == "ready"),
            nodes_short_since_s=self._note(turn, "nodes", few_nodes),
            short_since_s=self._note(turn, "replicas", few),
        )

    def _note(self, turn: Turn, what: str, is_so: bool) -> float | None:
        """Since when it is so; None if it is not. For how long is told by a clock that does not
        jump."""
        key = turn.name, what
        if not is_so:
            self._since.pop(key, None)
            return None
        now_s = self._monotonic()
        return self._clock() - (now_s - self._since.setdefault(key, now_s))

    def _forget(self, submissions: Mapping[str, Submission]) -> None:
        over = {name for name, item in submissions.items() if item.state != "submitted"}
        self._since = {
            key: since_s
            for key, since_s in self._since.items()
            if key[0] in submissions and key[0] not in over
        }


def _is_left(generation: GenerationDir, cell: str, path: Path) -> bool:
    """Whether a job of a cell has left that file. StateError where that cannot be told."""
    return is_there(generation.cell(cell)) and is_there(path)


def _has_cell(plan: Plan, turn: str) -> bool:
    return any(cell.name == cell_of(turn) for cell in plan.cells)


def _may_answer(item: Submission, jobs: Mapping[str, JobInfo], record: CellRecord) -> bool:
    """Whether there may be a controller. A job that the controller of Slurm has forgotten is asked
    too: if it answers, it lives."""
    if item.state != "submitted" or record.job_id != item.job_id:
        return False
    job = jobs.get(job_key(item))
    return job is None or job.is_running or job.state == states.GONE


def _job_state(item: Submission, job: JobInfo | None, state: CellState | None) -> JobState:
    if item.state == "stopped":
        return "ended"
    if item.state != "submitted":
        return "none"
    if job is None:
        return "unknown"
    if job.state == states.GONE and state is not None and state.phase != "stopping":
        return "unknown"  # Slurm has lost it, and it serves
    if job.is_finished:
        return "ended"
    if job.is_running:
        return "running"
    return "pending" if job.is_pending else "unknown"


def _only_ends(job: JobInfo | None) -> bool:
    """Whether nothing of a job runs any more that Slurm still counts: it waits for its nodes."""
    parts = job.components if job is not None and job.is_running else ()
    over = {"COMPLETING"} | states.FINISHED
    return bool(parts) and all(part.state in over for part in parts)


def _too_few_nodes(cell: CellPlan, state: CellState) -> bool:
    """Whether fewer worker nodes take part than the cell needs at least."""
    for part in cell.components:
        if part.role == "head":
            continue
        there = sum(
            node.state == "joined" for node in state.nodes if node.het_group == part.het_group
        )
        if there < part.min_nodes:
            return True
    return False


def _floor(cell: CellPlan, targets: Mapping[str, int] | None) -> int:
    """How many replicas a cell holds at least: those of its least number of nodes."""
    planned = sum(item.count for item in cell.replica_sets)
    if targets is not None:
        planned = min(planned, sum(targets.values()))
    workers = [part for part in cell.components if part.role != "head"]
    nodes, least = sum(part.nodes for part in workers), sum(part.min_nodes for part in workers)
    return math.ceil(planned * least / nodes) if nodes else planned


def _bring_up_s(plan: Plan) -> float:
    limits = plan.timeouts
    return limits.nodes_s + limits.stage_s + limits.ready_s + plan.ray.start_timeout_s


def _notice(generation: GenerationDir, cell: CellPlan, turn: Turn) -> float | None:
    """When Slurm warned the job. The warning that was asked for before its time limit
    (``--signal``) tells nothing new, and comes at once to a job that is shorter. A job that is
    preempted ends earlier than its limit."""
    path = generation.notice(cell.name)
    if not _is_left(generation, cell.name, path):
        return None
    text = read_text(path)
    try:
        notice_s = loads(JobNotice, text, where=str(path)).time_s
    except StateError as error:
        # Of a newer version, or damaged: no reason to look after nothing any more.
        log.warning("%s", error)
        return None
    asked = re.search(r"@(\d+)$", dict(cell.components[0].directives).get("signal") or "")
    end_s, planned_s = turn.limit_end_s, planned_limit_s(cell)
    if end_s is None or asked is None:
        return notice_s
    if turn.started_s is not None and planned_s is not None and turn.limited_by is None:
        end_s = max(end_s, turn.started_s + planned_s)
    expected_s = end_s - float(asked[1]) - _SIGNAL_EARLY_S
    return notice_s if notice_s < expected_s else None


def _text(generation: GenerationDir, turn: str) -> str | None:
    """Why a cell ended itself."""
    try:
        return read_text(generation.failure(turn)).strip() or None
    except StateError:
        return None
