"""How much a user's jobs may have at a time: what partitions hold, and what quality of service,
association and reservation allow, as Slurm tells it.

Slurm counts each component of a heterogeneous job as a job. Where limits of the same kind stand at
several places, the first of these counts: the partition's QOS, the job's QOS (before it with the
flag OverPartQOS), the user's association, its account
(https://slurm.schedmd.com/resource_limits.html).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exaslurm.errors import SlurmError
from exaslurm.slurm.client import Slurm

# What is counted, as Slurm calls it: TRES, and jobs that run or are in the queue.
JOBS, QUEUED = "jobs", "queued"
# Columns of sacctmgr; those of a QOS that hold for its users together, each user, each account.
_QOS_FORMAT = (
    "Name,Flags,GrpTRES,GrpJobs,GrpSubmit,MaxTRESPU,MaxJobsPU,MaxSubmitPU,MaxTRESPA,MaxJobsPA,"
    "MaxSubmitPA"
)
_ASSOCIATION_FORMAT = (
    "Account,User,Partition,DefaultQOS,GrpTRES,GrpJobs,GrpSubmit,MaxJobs,MaxSubmit"
)
_NOTHING = ("", "(null)", "N/A", "n/a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """At most so many of ``what`` (``node``, ``cpu``, ``mem`` in MiB, ``gres/gpu``, JOBS, QUEUED)
    at a time. ``where`` names the place for people."""

    what: str
    most: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """What a partition holds, and which QOS of its own it has. ``whole_nodes``: jobs share none."""

    name: str
    is_default: bool
    whole_nodes: bool
    qos: str | None
    holds: tuple[Ceiling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QosLimits:
    """``over_partition``: its limits come before those of the partition's QOS."""

    name: str
    over_partition: bool
    ceilings: tuple[Ceiling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """What a user may have under an account (``user`` empty: all of the account together), in one
    partition or (None) in all."""

    account: str
    user: str
    partition: str | None
    default_qos: str | None
    ceilings: tuple[Ceiling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Everything that Slurm tells of it. ``qos`` and ``associations`` are empty where the site does
    not enforce limits, or has no accounting; the first association is the user's default one."""

    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)
    qos: Mapping[str, QosLimits] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    reservations: Mapping[str, tuple[Ceiling, ...]] = field(default_factory=dict)


def take_limits(slurm: Slurm, user: str, *, reservations: bool = False) -> QueueLimits:
    """Ask Slurm, each question once; ``reservations`` only where one is named. What it does not
    tell is left out. Raises QueryFailed and CommandNotFound if it does not even tell of its
    partitions."""
    partitions = parse_partition_limits(
        slurm.query(["scontrol", "show", "partition", "--oneliner"])
    )
    qos: Mapping[str, QosLimits] = {}
    associations: tuple[Association, ...] = ()
    held: Mapping[str, tuple[Ceiling, ...]] = {}
    with contextlib.suppress(SlurmError):
        if enforces_limits(slurm.query(["scontrol", "show", "config"])):
            ask = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show"]
            qos = parse_qos(slurm.query([*ask, "qos", f"format={_QOS_FORMAT}"]))
            words = ["assoc", f"format={_ASSOCIATION_FORMAT}"]
            mine = parse_associations(slurm.query([*ask, *words, "where", f"user={user}"]))
            accounts = ",".join(dict.fromkeys(item.account for item in mine))
            above = ["where", f"account={accounts}", "user="]
            associations = mine
            if accounts:
                associations += parse_associations(slurm.query([*ask, *words, *above]))
    if reservations:
        with contextlib.suppress(SlurmError):
            text = slurm.query(["scontrol", "show", "reservation", "--oneliner"])
            held = parse_reserved(text)
    return QueueLimits(partitions=partitions, qos=qos, associations=associations, reservations=held)


def ceilings_of(
    limits: QueueLimits, *, partition: str | None, qos: str | None, account: str | None
) -> tuple[Ceiling, ...]:
    """What holds for a job of that partition, QOS and account (None: Slurm's default). Of each
    thing at most one ceiling of accounting, and what the partition holds."""
    place = _partition(limits, partition)
    own = [
        item
        for item in limits.associations
        if item.user
        and account in (None, item.account)
        and item.partition in (None, place.name if place else None)
    ]
    mine = next((item for item in own if item.partition is not None), own[0] if own else None)
    name = qos or (mine.default_qos if mine else None) or "normal"
    orders: list[tuple[Ceiling, ...]] = []
    job_qos = limits.qos.get(name)
    of_partition = limits.qos.get(place.qos or "") if place else None
    first, second = of_partition, job_qos
    if job_qos is not None and job_qos.over_partition:
        first, second = job_qos, of_partition
    orders += [item.ceilings for item in (first, second) if item is not None]
    if mine is not None:
        orders.append(mine.ceilings)
        orders += [
            item.ceilings
            for item in limits.associations
            if not item.user and item.account == mine.account
        ]
    found: dict[str, Ceiling] = {}
    for ceilings in orders:
        here: dict[str, Ceiling] = {}
        for item in ceilings:  # of several at one place all hold, so the least counts
            if item.what not in here or item.most < here[item.what].most:
                here[item.what] = item
        found = {**here, **found}
    return (*found.values(), *(place.holds if place else ()))


def enforces_limits(config: str) -> bool:
    """From ``scontrol show config``: whether limits of QOS and association hold."""
    for line in config.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "AccountingStorageEnforce":
            words = {word.strip() for word in value.lower().split(",")}
            return bool(words & {"limits", "safe", "all"})
    return False


def parse_partition_limits(text: str) -> dict[str, PartitionLimits]:
    """``scontrol show partition --oneliner``."""
    found = {}
    for line in text.splitlines():
        words = _words(line)
        name = words.get("PartitionName", "")
        if not name:
            continue
        where = f"partition {name}"
        whole = words.get("OverSubscribe", "").startswith("EXCLUSIVE")
        holds = _tres(words.get("TRES", ""), where)
        totals = (("node", "TotalNodes"), ("cpu", "TotalCPUs"))
        known = {item.what for item in holds}
        holds += [
            Ceiling(what=what, most=float(words[key]), where=where)
            for what, key in totals
            if what not in known and words.get(key, "").isdigit()
        ]
        qos = words.get("QoS", "")
        found[name] = PartitionLimits(
            name=name,
            is_default=words.get("Default") == "YES",
            whole_nodes=whole,
            qos=None if qos in _NOTHING else qos,
            holds=tuple(holds),
        )
    return found


def parse_qos(text: str) -> dict[str, QosLimits]:
    """``sacctmgr -nP show qos`` in ``_QOS_FORMAT``."""
    found = {}
    for row in _rows(text, _QOS_FORMAT):
        name, flags, grp, grp_jobs, grp_queued, per_user, jobs, queued, *of_account = row
        every, each, account = (f"QOS {name}{who}" for who in (
            " (for all its users together)", "", " (for each account)"))  # fmt: skip
        account_tres, account_jobs, account_queued = of_account
        found[name] = QosLimits(
            name=name,
            over_partition="OverPartQOS" in flags.split(","),
            ceilings=(
                *_all(grp, grp_jobs, grp_queued, every),
                *_all(per_user, jobs, queued, each),
                *_all(account_tres, account_jobs, account_queued, account),
            ),
        )
    return found


def parse_associations(text: str) -> tuple[Association, ...]:
    """``sacctmgr -nP show assoc`` in ``_ASSOCIATION_FORMAT``."""
    found = []
    for row in _rows(text, _ASSOCIATION_FORMAT):
        account, user, partition, default_qos, grp, grp_jobs, grp_queued, jobs, queued = row
        where = f"account {account}" if user else f"account {account} (for all its users together)"
        ceilings = _all(grp, grp_jobs, grp_queued, where)
        if user:  # of an account these are what each user gets by default
            ceilings += _all("", jobs, queued, where)
        found.append(
            Association(
                account=account,
                user=user,
                partition=partition or None,
                default_qos=default_qos or None,
                ceilings=tuple(ceilings),
            )
        )
    return tuple(found)


def parse_reserved(text: str) -> dict[str, tuple[Ceiling, ...]]:
    """``scontrol show reservation --oneliner``: what each one holds."""
    found = {}
    for line in text.splitlines():
        words = _words(line)
        name = words.get("ReservationName", "")
        if not name:
            continue
        where = f"reservation {name}"
        holds = _tres(words.get("TRES", ""), where)
        if words.get("NodeCnt", "").isdigit():
            holds.append(Ceiling(what="node", most=float(words["NodeCnt"]), where=where))
        found[name] = tuple(holds)
    return found


def _partition(limits: QueueLimits, name: str | None) -> PartitionLimits | None:
    if name is not None:  # of several, Slurm takes one: the first that is known
        names = name.split(",")
        return next((limits.partitions[n] for n in names if n in limits.partitions), None)
    return next((item for item in limits.partitions.values() if item.is_default), None)


def _all(tres: str, jobs: str, queued: str, where: str) -> list[Ceiling]:
    found = _tres(tres, where)
    for what, text in ((JOBS, jobs), (QUEUED, queued)):
        if text.strip().isdigit():
            found.append(Ceiling(what=what, most=float(text), where=where))
    return found


def _tres(text: str, where: str) -> list[Ceiling]:
    """``cpu=16,mem=64G,node=2,gres/gpu=8``; types of GPUs are left out, since all of them are in
    the sum."""
    found = []
    for part in text.split(","):
        what, _, value = part.strip().partition("=")
        if what not in ("node", "cpu", "mem", "gres/gpu"):
            continue
        most = _mib(value) if what == "mem" else float(value) if value.isdigit() else None
        if most is not None:
            found.append(Ceiling(what=what, most=most, where=where))
    return found


def _mib(text: str) -> float | None:
    units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        return None


def _words(line: str) -> dict[str, str]:
    """``Key=value`` without blanks in it."""
    pairs = (word.partition("=") for word in line.split())
    return {key: value for key, equals, value in pairs if equals}


def _rows(text: str, columns: str) -> list[Sequence[str]]:
    count = columns.count(",") + 1
    rows = [line.split("|") for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == count]
