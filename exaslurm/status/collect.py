"""One snapshot of a deployment, bounded in time and sparing with Slurm.

Sources, best first: the cells' controllers (HTTP), their registry records, and what submit wrote.
Slurm is asked once for all jobs, and not more often than the plan's ``poll_floor_s``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from exaslurm.core import codec
from exaslurm.core.cell import CellRecord, CellState, ReplicaStatus
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.sharing import Counts
from exaslurm.core.submission import (
    GatewayJobs,
    RouterAddress,
    Submission,
    SupervisorNotes,
)
from exaslurm.core.turns import cell_of
from exaslurm.errors import ExaslurmError, SlurmError, StateError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.types import JobId
from exaslurm.status import cause as judge
from exaslurm.status.gateway import gateway_statuses, read_gateway_jobs, why_none
from exaslurm.status.logs import last_words, router_error
from exaslurm.status.model import (
    CellStatus,
    DeploymentStatus,
    JobStatus,
    RolloutStatus,
    Source,
)
from exaslurm.status.rollouts import rollout_status, turns_to_show
from exaslurm.status.routers import RouterView, ask_router
from exaslurm.status.scaling import wanted_cells, wanted_replicas
from exaslurm.status.scaling import why_none as why_asleep
from exaslurm.status.spread import spread_of
from exaslurm.util.bounded import FILES_TIMEOUT_S, within
from exaslurm.util.files import read_text
from exaslurm.util.process import is_alive
from exaslurm.util.reach import is_reached

if TYPE_CHECKING:
    from exaslurm.slurm.client import Slurm
    from exaslurm.slurm.types import JobInfo

HTTP_TIMEOUT_S = 2.0
ALL_CELLS_TIMEOUT_S = 6.0


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Everything the run directory says, read in one go. ``plans``: those of all generations that
    have jobs to show; ``plan`` is that of the wanted one. ``wanted``: the cells that are, and how
    many replicas of each shard they run (None: all)."""

    plan: Plan
    wanted: Mapping[str, Counts | None]
    plans: Mapping[int, Plan]
    rollout: RolloutStatus | None
    generation: GenerationDir
    submissions: Mapping[str, Submission]
    records: Mapping[str, CellRecord]
    turns: tuple[tuple[CellPlan, int], ...]
    notes: SupervisorNotes | None
    found_out: tuple[str, ...]
    log_tails: Mapping[str, str]
    failures: Mapping[str, str]
    routers: tuple[RouterAddress, ...]
    router_error: str | None
    gateway: GatewayJobs | None
    run_wanted: bool
    internal_key: str | None


@dataclass(slots=True)
class Collector:
    """Collects again and again (``--watch``, ``--wait``), keeping Slurm's last answer for as long
    as the plan's ``poll_floor_s`` says."""

    run_dir: RunDir
    slurm: Slurm | None
    hostname: str = field(default_factory=socket.gethostname)
    clock: Callable[[], float] = time.monotonic
    _jobs: dict[str, JobInfo] = field(default_factory=dict)
    _asked_at: float | None = None
    _slurm_error: str | None = None

    def collect(self) -> DeploymentStatus:
        """The snapshot. StateError if the run directory cannot be read (in time)."""
        disk = within(FILES_TIMEOUT_S, self._read, f"reading {self.run_dir.path}")
        self._ask_slurm(disk)
        states = self._ask_controllers(disk)
        cells = tuple(
            self._cell(disk, cell, number, states.get(cell.name)) for cell, number in disk.turns
        )
        return self._overall(disk, cells)

    # -- the run directory ---------------------------------------------------------------------

    def _read(self) -> _OnDisk:
        from exaslurm.keys.secrets import read_secret
        from exaslurm.registry.read import read_records

        self.run_dir.require()
        run_wanted, number = read_desired(self.run_dir)
        generation = self.run_dir.latest() if number is None else self.run_dir.generation(number)
        if generation is None:
            raise StateError(
                f"{self.run_dir.path} holds no generation",
                remedy="the submit that made it was interrupted: submit again",
            )
        if not generation.plan.exists():
            raise StateError(
                f"{generation.path} holds no plan",
                remedy="the submit that made it was interrupted: submit again",
            )
        rollout = self.run_dir.read_rollout()
        under_way = rollout is not None and rollout.concerns(generation.number)
        numbers = {generation.number}
        if rollout is not None and under_way:
            numbers |= {rollout.stable, rollout.candidate}
        plans, submissions = {}, {}
        for number in sorted(numbers):
            each = self.run_dir.generation(number)
            plans[number] = codec.loads(Plan, read_text(each.plan), where=str(each.plan))
            submissions.update(read_submissions(each))
        plan = plans[generation.number]
        lanes = rollout.lanes if rollout is not None and under_way else None
        turns = turns_to_show(plans, submissions, lanes)
        tails, failures = {}, {}
        for cell, number in turns:
            each = self.run_dir.generation(number)
            tail = last_words(each.logs(cell.name))
            if tail:
                tails[cell.name] = tail
            if each.failure(cell.name).exists():
                failures[cell.name] = read_text(each.failure(cell.name)).strip()
        hashes = {item.hash for item in plans.values()}
        try:
            key: str | None = read_secret(self.run_dir.internal_key)
        except ExaslurmError:
            key = None
        wanted = wanted_cells(self.run_dir, plan)
        ended = {name for name, item in submissions.items() if item.state == "stopped"}
        turns = tuple(
            (cell, number)
            for cell, number in turns
            if cell_of(cell.name) in wanted or (cell.name in submissions and cell.name not in ended)
        )
        return _OnDisk(
            plan=plan,
            wanted=wanted,
            plans=plans,
            rollout=rollout_status(self.run_dir, rollout, generation.number),
            generation=generation,
            submissions=submissions,
            turns=turns,
            notes=read_notes(self.run_dir, self.hostname),
            found_out=_lines(generation.notes),
            records={
                record.cell: record
                for record in read_records(self.run_dir)
                if record.plan_hash in hashes
            },
            log_tails=tails,
            failures=failures,
            routers=self.run_dir.read_routers(),
            router_error=router_error(self.run_dir),
            gateway=read_gateway_jobs(self.run_dir),
            run_wanted=run_wanted,
            internal_key=key,
        )

    # -- Slurm ---------------------------------------------------------------------------------

    def _ask_slurm(self, disk: _OnDisk) -> None:
        ids = [
            _key(submission)
            for submission in disk.submissions.values()
            if submission.job_id and submission.job_id != "local" and submission.state != "stopped"
        ]
        ids += disk.gateway.ids if disk.gateway is not None else ()
        now = self.clock()
        fresh = self._asked_at is not None and now - self._asked_at < disk.plan.poll_floor_s
        if not ids or self.slurm is None or (fresh and all(i in self._jobs for i in ids)):
            return
        if fresh and self._slurm_error is not None:
            return
        self._asked_at = now
        try:
            self._jobs.update(self.slurm.jobs(ids))
            self._slurm_error = None
        except SlurmError as error:
            self._slurm_error = str(error)

    def _job(self, submission: Submission) -> JobStatus:
        if submission.job_id == "local":
            return JobStatus(
                id="local",
                name=submission.job_name,
                cluster=None,
                state=self._local_state(submission),
                submitted_s=submission.submitted_s,
                started_s=submission.submitted_s,
                nodes=(submission.host,) if submission.host else (),
            )
        known = self._jobs.get(_key(submission))
        bare = JobStatus(
            id=submission.job_id,
            name=submission.job_name,
            cluster=submission.cluster,
            state=judge.LOCAL_ENDED if submission.state == "stopped" else "UNKNOWN",
            submitted_s=submission.submitted_s,
        )
        return bare if known is None else with_slurm_facts(bare, known)

    def _local_state(self, submission: Submission) -> str:
        if submission.pid is None or submission.start_ticks is None:
            return "UNKNOWN"
        if submission.host not in (None, self.hostname):
            return "UNKNOWN"
        return "RUNNING" if is_alive(submission.pid, submission.start_ticks) else judge.LOCAL_ENDED

    # -- controllers ---------------------------------------------------------------------------

    def _ask_controllers(self, disk: _OnDisk) -> dict[str, CellState]:
        from exaslurm.registry.client import fetch_states

        if disk.internal_key is None:
            return {}
        urls = {
            name: record.state_url
            for name, record in disk.records.items()
            if name in disk.submissions and self._may_be_asked(disk.submissions[name])
        }
        found = fetch_states(
            urls, disk.internal_key, timeout_s=HTTP_TIMEOUT_S, all_s=ALL_CELLS_TIMEOUT_S
        )
        hashes = {plan.hash for plan in disk.plans.values()}
        return {name: state for name, state in found.items() if state.plan_hash in hashes}

    def _may_be_asked(self, submission: Submission) -> bool:
        if submission.is_elsewhere(self.hostname):
            return False
        return submission.state != "stopped" and self._job(submission).state not in judge.ENDED

    def _ask_routers(self, live: tuple[RouterAddress, ...], key: str) -> list[RouterView]:
        """What the routers say that can be reached from here."""
        return [
            ask_router(router, key, HTTP_TIMEOUT_S)
            for router in live
            if is_reached(router.url, router.host, self.hostname)
        ]

    # -- judgement -----------------------------------------------------------------------------

    def _cell(
        self, disk: _OnDisk, cell: CellPlan, generation: int, state: CellState | None
    ) -> CellStatus:
        submission = disk.submissions.get(cell.name)
        record = disk.records.get(cell.name)
        job = self._job(submission) if submission is not None else None
        planned = wanted_replicas(cell, disk.wanted, cell_of(cell.name))
        nodes_planned = sum(component.nodes for component in cell.components)
        finding = judge.judge_submission(submission, disk.plan.deployment)
        if finding is None and job is not None:
            finding = judge.judge_job(
                job,
                run_wanted=disk.run_wanted,
                failure=disk.failures.get(cell.name),
                log_tail=disk.log_tails.get(cell.name),
            )
        over = finding is not None
        source: Source = "submission"
        replicas: tuple[ReplicaStatus, ...] = ()
        if state is not None and not over:
            source, replicas = "controller", state.replicas
            finding = judge.judge_state(state, planned=planned)
        elif record is not None and not over:
            source, replicas = "registry", replicas_of_record(record)
            ready = sum(replica.state == "ready" for replica in replicas)
            finding = judge.judge_records(ready, planned, known=bool(replicas))
        elif finding is None:
            finding = judge.judge_records(0, planned, known=False)
            if job is not None and job.state == "UNKNOWN":
                finding = judge.Finding("unknown", f"the state of job {job.id} is not known")
        notes = state.notes if state is not None and not over else ()
        said = disk.notes.cells.get(cell_of(cell.name)) if disk.notes is not None else None
        return CellStatus(
            name=cell.name,
            phase=finding.phase,
            source=source,
            cause=finding.cause,
            remedy=finding.remedy,
            job=job,
            nodes_planned=nodes_planned,
            nodes_joined=(
                sum(node.state == "joined" for node in state.nodes) if state and not over else 0
            ),
            replicas_planned=planned,
            replicas_ready=sum(replica.state == "ready" for replica in replicas),
            nodes=state.nodes if state is not None and not over else (),
            ray=state.ray if state is not None and not over else None,
            replicas=replicas,
            notes=(*((f"supervisor: {said}",) if said else ()), *_gap(submission), *notes),
            generation=generation,
        )

    def _overall(self, disk: _OnDisk, cells: tuple[CellStatus, ...]) -> DeploymentStatus:
        plan = disk.plan
        wanted = [cell for cell in cells if cell_of(cell.name) in disk.wanted]
        finding = judge.combine(judge.speakers(wanted))
        if not disk.wanted and disk.run_wanted:
            finding = judge.Finding("ready", why_asleep(plan))
        live = tuple(router for router in disk.routers if self._router_may_live(router))
        gateway_jobs = gateway_statuses(disk.gateway, self._jobs)
        planned = sum(wanted_replicas(cell, disk.wanted, cell.name) for cell in plan.cells)
        if finding.phase == "ready" and (live or plan.gateway.start_with_submit):
            views = [] if disk.internal_key is None else self._ask_routers(live, disk.internal_key)
            of_routers = judge.judge_routers(
                views,
                planned,
                plan.deployment,
                listed=len(live),
                error=disk.router_error,
            )
            waits = why_none(gateway_jobs)
            if not live and waits is not None:
                text = f"every replica is ready, but no gateway runs: {waits}"
                of_routers = judge.Finding("degraded", text)
            # Of a cell that is ready, and yet not as planned, its own word stays.
            finding = finding if of_routers == judge.Finding("ready") else of_routers
        return DeploymentStatus(
            deployment=plan.deployment,
            generation=disk.generation.number,
            plan_hash=plan.hash,
            site=plan.site,
            layout=plan.layout,
            run_dir=str(self.run_dir.path),
            phase=finding.phase,
            cause=finding.cause,
            remedy=finding.remedy,
            run_wanted=disk.run_wanted,
            replicas_planned=planned,
            replicas_ready=sum(cell.replicas_ready for cell in cells),
            base_url=live[0].base_url if live else None,
            routers=live,
            cells=cells,
            slurm_error=self._slurm_error,
            collected_s=time.time(),
            simulated=any(
                model.engine.kind == "simulated"
                for each in disk.plans.values()
                for model in each.models
            ),
            spread=spread_of(plan, cells),
            notes=disk.found_out,
            rollout=disk.rollout,
            gateway_jobs=gateway_jobs,
        )

    def _router_may_live(self, router: RouterAddress) -> bool:
        """A process of this host is looked at; one of another host is taken at its word, unless it
        ran in a job that has ended."""
        job = self._jobs.get(router.job_id)
        if job is not None and job.is_finished:
            return False
        return router.host != self.hostname or is_alive(router.pid, router.start_ticks)


def _gap(submission: Submission | None) -> tuple[str, ...]:
    """For how long nothing of a cell served before this job of it."""
    if submission is None or submission.gap_s is None:
        return ()
    return (
        f"nothing of its cell served for {submission.gap_s:.0f} s before {submission.cell} did",
    )


def _lines(path: Path) -> tuple[str, ...]:
    """The lines of a file; none if it is not there."""
    return tuple(read_text(path).splitlines()) if path.exists() else ()


def read_submissions(generation: GenerationDir) -> dict[str, Submission]:
    """What was written down of each job of a generation, by turn."""
    paths = sorted(generation.submissions.glob("[!.]*.json"))
    return {path.stem: codec.loads(Submission, read_text(path), where=str(path)) for path in paths}


def read_notes(run_dir: RunDir, hostname: str) -> SupervisorNotes | None:
    """What the supervisor has to say; None if there is none, or it has died on this host."""
    if not run_dir.supervisor.exists():
        return None
    text = read_text(run_dir.supervisor)
    notes = codec.loads(SupervisorNotes, text, where=str(run_dir.supervisor))
    return notes if notes.host != hostname or is_alive(notes.pid, notes.start_ticks) else None


def collect(run_dir: RunDir, slurm: Slurm | None) -> DeploymentStatus:
    """One snapshot. ``slurm`` None: Slurm is not asked."""
    return Collector(run_dir, slurm).collect()


def _key(submission: Submission) -> str:
    """A job as ``Slurm.jobs`` names it: of another cluster than this host's, with that."""
    return str(JobId(submission.job_id or "", submission.cluster))


def with_slurm_facts(job: JobStatus, info: JobInfo) -> JobStatus:
    """The job with what Slurm says about it."""
    from exaslurm.slurm.reasons import explain

    return replace(
        job,
        state=info.state,
        reason=info.reason or None,
        explanation=explain(info.reason) if info.is_pending and info.reason else None,
        started_s=info.start_s,
        ended_s=info.end_s,
        exit_code=info.exit_code,
        nodes=info.nodes,
    )


def replicas_of_record(record: CellRecord) -> tuple[ReplicaStatus, ...]:
    """A record's replicas in the form that a controller gives them."""
    return tuple(
        ReplicaStatus(
            id=item.id,
            model=item.model,
            shard=item.shard,
            served_names=item.served_names,
            state="ready" if item.ready else "pending",
            node=item.node,
            url=item.url,
            max_model_len=item.max_model_len,
            simulated=item.simulated,
            version=item.version,
        )
        for item in record.replicas
    )


def read_desired(run_dir: RunDir) -> tuple[bool, int | None]:
    """Whether the owner wants the deployment to run, and which generation (desired.json)."""
    desired = run_dir.read_desired()
    return (True, None) if desired is None else (desired.run, desired.generation)
