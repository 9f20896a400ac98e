"""A Slurm that is made up: what its commands answer, which jobs start where, and when they end.

Pure: the caller brings the time (Unix seconds of the simulation). Nodes belong to one job at a
time, jobs start in the order of their submission unless a later one fits where an earlier one does
not, and a job has one component. What its commands print is held against the real Slurm in the
tests (``tests/simulate/test_lab.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.slurm.parse import duration_s, time_text
from exaslurm.util.hostlist import expand

# A job that has ended is forgotten after this time (MinJobAge).
FORGET_S = 300.0
# Between SIGTERM and SIGKILL (KillWait).
KILL_WAIT_S = 40.0
# A node that does not answer is down after this time (SlurmdTimeout).
SLURMD_TIMEOUT_S = 120.0

EventKind = Literal["start", "terminate", "kill", "warn"]
_SILENCE = "Socket timed out on send/recv operation"
_ENDING = ("CANCELLED", "TIMEOUT")


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to the processes of a job now."""

    kind: EventKind
    job: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    stdout: str = ""
    stderr: str = ""


@dataclass(slots=True)
class Job:
    """One job. ``nodes`` are those that it (still) has, ``alive`` those whose task runs."""

    id: str
    name: str
    script: str
    wanted: int
    partition: str
    limit_s: float
    warn_s: float | None
    excluded: frozenset[str]
    submitted_s: float
    state: str = "PENDING"
    reason: str = "Priority"
    nodes: tuple[str, ...] = ()
    alive: set[str] = field(default_factory=set)
    start_s: float | None = None
    end_s: float | None = None
    told_s: float | None = None
    fate: str | None = None
    warned: bool = False
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "COMPLETING")

    @property
    def limit_end_s(self) -> float | None:
        return None if self.start_s is None else self.start_s + self.limit_s


class Slurmctld:
    """The controller. ``nodes``: name to partition. ``wait_s``: how long a job waits at least."""

    def __init__(self, nodes: Mapping[str, str], *, wait_s: float = 10.0) -> None:
        self.jobs: dict[str, Job] = {}
        self.silent = False
        self.calls: dict[str, int] = {}
        self._partition = dict(nodes)
        self._wait_s = wait_s
        self._owner: dict[str, str] = {}
        self._lost: dict[str, float] = {}
        self._next_id = 101

    # --- time ------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[Event]:
        """What happens until now. While the controller is silent nothing does."""
        if self.silent:
            return []
        events = list(self._end_those_on_lost_nodes(now_s))
        for job in self.jobs.values():
            if not job.is_over and job.state != "PENDING":
                events += self._run(job, now_s)
        events += self._start(now_s)
        return events

    def _run(self, job: Job, now_s: float) -> Iterator[Event]:
        end_s = job.limit_end_s
        assert end_s is not None
        if job.state == "RUNNING" and now_s >= end_s:
            yield self._tell(job, "TIMEOUT", now_s)
        elif job.warn_s is not None and not job.warned and now_s >= end_s - job.warn_s:
            job.warned = True
            yield Event("warn", job.id, job.nodes)
        if job.told_s is not None and now_s - job.told_s > KILL_WAIT_S and job.alive:
            yield Event("kill", job.id, tuple(sorted(job.alive)))
            job.alive.clear()
        if not job.alive:
            self._finish(job, now_s)

    def _tell(self, job: Job, fate: str, now_s: float) -> Event:
        job.state, job.fate, job.told_s = "COMPLETING", fate, now_s
        return Event("terminate", job.id, tuple(sorted(job.alive)))

    def _finish(self, job: Job, now_s: float) -> None:
        code = job.codes.get(job.nodes[0], 1) if job.nodes else 1
        job.state = job.fate or ("COMPLETED" if code == 0 else "FAILED")
        reasons = {"TIMEOUT": "TimeLimit", "FAILED": "NonZeroExitCode", "NODE_FAIL": "NodeDown"}
        job.reason = reasons.get(job.state, "None")
        job.end_s = now_s
        self._owner = {node: owner for node, owner in self._owner.items() if owner != job.id}

    def _end_those_on_lost_nodes(self, now_s: float) -> Iterator[Event]:
        """With ``--no-kill`` a job goes on without a node, unless its batch script was there."""
        for node, since_s in self._lost.items():
            if node in self._owner and now_s - since_s >= SLURMD_TIMEOUT_S:
                event = self._without(node, now_s)
                if event is not None:
                    yield event

    def _without(self, node: str, now_s: float) -> Event | None:
        """A job loses a node."""
        job = self.jobs[self._owner.pop(node)]
        job.alive.discard(node)
        if node != job.nodes[0] and len(job.nodes) > 1:
            job.nodes = tuple(name for name in job.nodes if name != node)
            return None
        left = tuple(sorted(job.alive))
        job.alive.clear()
        job.told_s = job.told_s or now_s
        job.state, job.fate = "COMPLETING", job.fate or "NODE_FAIL"
        return Event("kill", job.id, left)

    def _start(self, now_s: float) -> Iterator[Event]:
        for job in self.jobs.values():
            if job.state != "PENDING" or now_s - job.submitted_s < self._wait_s:
                continue
            free = [
                node
                for node, partition in self._partition.items()
                if partition == job.partition
                and node not in self._owner
                and node not in self._lost
                and node not in job.excluded
            ]
            if len(free) < job.wanted:
                job.reason = "Resources"
                continue
            job.nodes = tuple(sorted(free[: job.wanted]))
            job.alive = set(job.nodes)
            job.state, job.reason, job.start_s = "RUNNING", "None", now_s
            self._owner |= dict.fromkeys(job.nodes, job.id)
            yield Event("start", job.id, job.nodes)

    # --- what is done to it ----------------------------------------------------------------------

    def task_ended(self, ident: str, node: str, code: int) -> None:
        """The task of a job on a node has ended. The end of the first is that of the job."""
        job = self.jobs[ident]
        job.codes[node] = code
        job.alive.discard(node)

    def head_ended(self, ident: str, now_s: float) -> Event | None:
        """The batch script has ended: what is left of the job is ended too."""
        job = self.jobs[ident]
        if job.is_over or job.told_s is not None:
            return None
        job.state, job.told_s = "COMPLETING", now_s
        return Event("terminate", ident, tuple(sorted(job.alive)))

    def node_lost(self, node: str, now_s: float) -> None:
        """A node does not answer any more."""
        self._lost.setdefault(node, now_s)

    def node_back(self, node: str, now_s: float) -> Event | None:
        """It answers again, after a boot: what ran there does not any more."""
        if self._lost.pop(node, None) is None or node not in self._owner:
            return None
        return self._without(node, now_s)

    def set_limit(self, ident: str, limit_s: float) -> None:
        """``scontrol update TimeLimit``, by an administrator."""
        self.jobs[ident].limit_s = limit_s

    def owner_of(self, node: str) -> str | None:
        """The job that has a node."""
        return self._owner.get(node)

    def is_lost(self, node: str) -> bool:
        return node in self._lost

    def live(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.jobs.values() if not job.is_over]

    # --- its commands ----------------------------------------------------------------------------

    def command(self, argv: Sequence[str], script: str, now_s: float) -> tuple[Said, list[Event]]:
        """What a command prints, and what comes of it at once."""
        name, *words = argv
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.silent:
            return Said(1, "", f"{name}: error: {_SILENCE}\n"), []
        if name == "sbatch":
            return self._sbatch(words, script, now_s), []
        if name == "scancel":
            return self._scancel(words[-1], now_s)
        if name == "squeue":
            return self._squeue(words, now_s), []
        if name == "sacct":
            return Said(1, "", "Slurm accounting storage is disabled\n"), []
        if name == "sinfo":
            lines = (f"{node} {part}\n" for node, part in sorted(self._partition.items()))
            return Said(0, "".join(lines)), []
        if name == "scontrol" and "reservation" in words:
            return Said(0, "No reservations in the system\n"), []
        if name == "scontrol" and words[0] == "update":
            return self._update(dict(word.partition("=")[::2] for word in words[1:])), []
        return Said(1, "", f"{name}: error: not simulated: {' '.join(words)}\n"), []

    def _sbatch(self, words: Sequence[str], script: str, now_s: float) -> Said:
        options = _options(script, words)
        partition = options.get("partition", "")
        if partition not in self._partition.values():
            complaint = (
                f"sbatch: error: invalid partition specified: {partition}\nsbatch: error: Batch "
                "job submission failed: Invalid partition name specified\n"
            )
            return Said(1, "", complaint)
        excluded = frozenset(expand(options.get("exclude", "")))
        wanted = int(options.get("nodes", "1"))
        nodes = {name for name, part in self._partition.items() if part == partition}
        if len(nodes - excluded) < wanted <= len(nodes):
            complaint = "Requested node configuration is not available"
            return Said(1, "", f"sbatch: error: Batch job submission failed: {complaint}\n")
        ident = str(self._next_id)
        self._next_id += 1
        signal = re.search(r"@(\d+)$", options.get("signal", ""))
        self.jobs[ident] = Job(
            id=ident,
            name=options.get("job-name", "sbatch"),
            script=script,
            wanted=wanted,
            partition=partition,
            limit_s=_limit_s(options.get("time", "60")),
            warn_s=float(signal[1]) if signal else None,
            excluded=excluded,
            submitted_s=now_s,
        )
        return Said(0, f"{ident}\n")

    def _scancel(self, ident: str, now_s: float) -> tuple[Said, list[Event]]:
        job = self.jobs.get(ident)
        if job is None or (job.is_over and self._is_forgotten(job, now_s)):
            text = f"scancel: error: Kill job error on job id {ident}: Invalid job id specified\n"
            return Said(1, "", text), []
        if job.state == "PENDING":
            job.state, job.end_s = "CANCELLED", now_s
        elif job.told_s is None and not job.is_over:
            return Said(0), [self._tell(job, "CANCELLED", now_s)]
        return Said(0), []

    def _squeue(self, words: Sequence[str], now_s: float) -> Said:
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
        known = {i: job for i, job in self.jobs.items() if not self._is_forgotten(job, now_s)}
        if "jobs" in options:
            asked = options["jobs"].split(",")
            if len(asked) == 1 and asked[0] not in known:
                return Said(1, "", "slurm_load_jobs error: Invalid job id specified\n")
            known = {i: job for i, job in known.items() if i in asked}
        if "name" in options:
            known = {i: job for i, job in known.items() if job.name == options["name"]}
        if options.get("states") != "all":
            known = {i: job for i, job in known.items() if not job.is_over}
        form = options.get("format", "%i")
        return Said(0, "".join(_line(job, form) for job in known.values()))

    def _update(self, words: Mapping[str, str]) -> Said:
        job = self.jobs.get(words.get("JobId", ""))
        if job is None or job.is_over:
            return Said(1, "", "slurm_update error: Invalid job id specified\n")
        job.limit_s = _limit_s(words.get("TimeLimit", ""))
        return Said(0)

    def _is_forgotten(self, job: Job, now_s: float) -> bool:
        return job.end_s is not None and now_s - job.end_s > FORGET_S


def _line(job: Job, form: str) -> str:
    """A line of squeue."""
    end_s = job.end_s if job.is_over else job.limit_end_s
    if job.state == "COMPLETING" and job.told_s is not None:
        end_s = job.told_s
    start_s = job.start_s if job.start_s is not None else job.end_s
    if job.is_over and job.start_s is None:
        end_s = start_s
    fields = {
        "i": job.id,
        "j": job.name,
        "T": job.state,
        "N": ",".join(job.nodes),
        "S": _time(start_s),
        "e": _time(end_s),
        "r": job.reason,
        "l": _duration(job.limit_s),
    }
    return re.sub("%([a-zA-Z])", lambda found: fields.get(found[1], ""), form) + "\n"


def _time(at_s: float | None) -> str:
    return "N/A" if at_s is None else time_text(at_s)


def _duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def _options(script: str, words: Sequence[str]) -> dict[str, str]:
    """Long options of a batch script and, above them, of the command line."""
    lines = [line.split() for line in script.splitlines() if line.startswith("#SBATCH ")]
    given = [word for line in lines for word in line[1:]] + list(words)
    pairs = (word[2:].partition("=") for word in given if word.startswith("--"))
    return {name: value.strip("'\"") for name, _, value in pairs}


def _limit_s(text: str) -> float:
    found = duration_s(text)
    return 365 * 86400.0 if found is None else found
