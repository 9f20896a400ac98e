"""The text that Slurm's commands print, to data. Pure.

``--json`` is not used: its shape changed in 21.08, 22.05, 23.02, 23.11 and 24.11, while these
formats have been the same for fifteen years.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from exaslurm.errors import QueryFailed
from exaslurm.slurm import states
from exaslurm.slurm.types import ComponentInfo, JobId, JobInfo

# The reason comes last: it is the one field that Slurm may fill with anything.
SQUEUE_FORMAT = "%i|%j|%T|%N|%S|%e|%r"
SACCT_FORMAT = "JobID,JobName,State,NodeList,Start,End,ExitCode"

LIMIT_FORMAT = "%i|%l"
_CLUSTER = "CLUSTER: "

_JOB_ID = re.compile(r"(\d+);?(\S+)?")
_COMPONENT_ID = re.compile(r"(\d+)(?:\+(\d+))?")

Expand = Callable[[str], list[str]]


def job_id(stdout: str) -> JobId | None:
    """The id in the answer of ``sbatch --parsable``; None if there is none.

    Submit plugins print remarks on the same stream, so only the last word counts.
    """
    words = stdout.split()
    match = re.fullmatch(r"(\d+)(?:;(\S+))?", words[-1]) if words else None
    return JobId(match[1], match[2]) if match else None


def squeue_jobs(stdout: str, expand: Expand) -> dict[str, JobInfo]:
    """Jobs by leader id, from lines of SQUEUE_FORMAT."""
    rows: dict[str | None, list[tuple[str, ...]]] = {}
    cluster: str | None = None
    for line in stdout.splitlines():
        if line.startswith(_CLUSTER):
            cluster = line.removeprefix(_CLUSTER).strip()
        elif line.strip():
            fields = line.split("|", 6)
            if len(fields) != 7:
                raise QueryFailed(f"squeue printed a line that is not understood: {line!r}")
            rows.setdefault(cluster, []).append((*fields, ""))
    found: dict[str, JobInfo] = {}
    for name, of_cluster in rows.items():
        jobs = _group(of_cluster, expand)
        found |= {ident: replace(job, cluster=name) for ident, job in jobs.items()}
    return found


def sacct_jobs(stdout: str, expand: Expand) -> dict[str, JobInfo]:
    """Jobs by leader id, from lines of ``sacct -X -n -P -o SACCT_FORMAT``."""
    rows = []
    for line in _lines(stdout):
        fields = line.split("|")
        if len(fields) != 7:
            raise QueryFailed(f"sacct printed a line that is not understood: {line!r}")
        ident, name, state, nodes, start, end, code = fields
        rows.append((ident, name, state, nodes, start, end, "", code))
    return _group(rows, expand)


def time_limits(stdout: str) -> dict[str, float | None]:
    """Time limits in seconds (None: no limit) by id of the component, from lines of
    LIMIT_FORMAT."""
    rows = (line.partition("|") for line in _lines(stdout))
    return {ident.strip(): duration_s(limit) for ident, _, limit in rows}


def unix_time(text: str) -> float | None:
    """``2026-11-29T20:31:00`` to Unix seconds; None for N/A and NONE.

    In UTC, for which the commands are asked (``environ.TIME_ZONE``): local time says an hour of the
    year twice.
    """
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def time_text(at_s: float) -> str:
    """Unix seconds as the commands take them."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))


def duration_s(text: str) -> float | None:
    """``[D-]HH:MM:SS``, ``MM:SS``, ``D-HH`` or minutes in seconds; None if there is no limit, or
    none is named (``UNLIMITED``, ``Partition_Limit``, ``NOT_SET``, ``INVALID``)."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return float(((days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)


def gone(ident: str) -> JobInfo:
    """A job that the controller has no memory of."""
    return JobInfo(
        id=ident,
        name="",
        state=states.GONE,
        reason="",
        nodes=(),
        start_s=None,
        end_s=None,
        components=(),
    )


def _lines(stdout: str) -> Iterable[str]:
    """Lines with content; with several clusters each one's part begins with its name."""
    return (line for line in stdout.splitlines() if line.strip() and not line.startswith(_CLUSTER))


def _group(rows: Iterable[tuple[str, ...]], expand: Expand) -> dict[str, JobInfo]:
    """Components (``93+0``, ``93+1``) under their leader, in order."""
    jobs: dict[str, JobInfo] = {}
    ends: dict[str, list[float | None]] = {}
    for ident, name, state, nodelist, start, end, reason, code in rows:
        match = _COMPONENT_ID.fullmatch(ident.strip())
        if match is None:  # an array task or a step: not a job of ours
            continue
        component = ComponentInfo(
            id=ident.strip(),
            offset=int(match[2] or 0),
            state=states.normal(state),
            reason="" if reason.strip() in ("None", "(null)") else reason.strip(),
            nodes=_hosts(nodelist, expand),
            exit_code=_exit_code(code),
        )
        job = jobs.get(match[1])
        if job is None:
            job = JobInfo(
                id=match[1],
                name=name.strip(),
                state="",
                reason="",
                nodes=(),
                start_s=unix_time(start.strip()),
                end_s=None,
                components=(),
            )
        ends.setdefault(match[1], []).append(unix_time(end.strip()))
        jobs[match[1]] = replace(job, components=(*job.components, component))
    return {ident: _summed(job, ends[ident]) for ident, job in jobs.items()}


def _summed(job: JobInfo, ends: list[float | None]) -> JobInfo:
    parts = tuple(sorted(job.components, key=lambda part: part.offset))
    state = states.combined([part.state for part in parts])
    # The reason of a component in that state is the one to show; any other beats none.
    reasons = [part.reason for part in parts if part.reason and part.state == state]
    reasons += [part.reason for part in parts if part.reason]
    known = [end_s for end_s in ends if end_s is not None]
    # One that runs is whole until the first of its components reaches its limit; one is over when
    # the last of them is.
    outermost = max if state in states.FINISHED else min
    return replace(
        job,
        components=parts,
        state=state,
        end_s=outermost(known) if known else None,
        reason=reasons[0] if reasons else "",
        nodes=tuple(node for part in parts for node in part.nodes),
    )


def _hosts(nodelist: str, expand: Expand) -> tuple[str, ...]:
    text = nodelist.strip()
    if text in ("", "(null)", "None assigned", "N/A"):
        return ()
    try:
        return tuple(expand(text))
    except ValueError as error:
        raise QueryFailed(f"Slurm named nodes that are not understood: {error}") from error


def _exit_code(code: str) -> int | None:
    """``0:0`` is exit code and signal; a signal counts as 128 more, as in a shell."""
    match = re.fullmatch(r"(\d+):(\d+)", code.strip())
    if match is None:
        return None
    return int(match[1]) or (128 + int(match[2]) if int(match[2]) else 0)
