"""The ``#SBATCH`` options of a component, in order.

Options partly carry over from one component of a heterogeneous job to the next and partly do not,
so every component gets all of its own. Job name and output are the template's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.plan.ceilings import Job, check_job
from exaslurm.plan.conditions import with_features
from exaslurm.plan.context import Findings
from exaslurm.site.model import NodeKind, Site
from exaslurm.spec.model import Spec
from exaslurm.util.fields import TIME, WORD, directive_pair

Directives = tuple[tuple[str, str | None], ...]

# The user's own defaults, by the key of the spec that they stand in for.
ENVIRON_DEFAULTS: Mapping[str, str] = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "time_limit": "SBATCH_TIMELIMIT",
}
# The key of the spec that fills a directive.
_SPEC_KEYS = {"time": "time_limit", "mem": "models"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of Slurm for each node of a component."""

    kind: NodeKind
    nodes: int
    cpus: int
    mem_mib: int | None
    gpus: int
    is_head: bool
    switches: str | None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of the whole job, from the spec, else the user's environment, else the site."""

    account: str | None
    partition: str | None
    fallback_partition: str | None
    qos: str | None
    reservation: str | None
    time_limit: str | None


def job_options(
    spec: Spec, site: Site, environ: Mapping[str, str], findings: Findings
) -> JobOptions:
    """Where the spec is silent, the user's environment speaks; a note tells so."""

    def user_default(key: str) -> str | None:
        name = ENVIRON_DEFAULTS[key]
        value = environ.get(name)
        if getattr(spec, key) is not None or not value:
            return None
        pattern = TIME if key == "time_limit" else WORD
        if not re.fullmatch(pattern, value, re.ASCII):
            findings.add(spec.problem(key, f"{name} in your environment is {value!r}: not usable"))
            return None
        if key != "partition":
            findings.note(f"{key}: {value} (from {name} in the environment)")
        return value

    time_limit = spec.time_limit or user_default("time_limit")
    if time_limit is None and site.limits.default_time is not None:
        time_limit = site.limits.default_time
        findings.note(f"time_limit: {time_limit} (the default of site {site.name})")
    return JobOptions(
        account=spec.account or user_default("account"),
        partition=spec.partition,
        fallback_partition=spec.partition or user_default("partition"),
        qos=spec.qos or user_default("qos"),
        reservation=spec.reservation or user_default("reservation"),
        time_limit=time_limit,
    )


def directives(
    ask: Ask, spec: Spec, site: Site, options: JobOptions, findings: Findings
) -> Directives:
    """The options of one component; what the site does not allow is reported."""
    partition = _partition(ask, options, findings)
    found = dict(_own(ask, partition, site, options))
    for text in (*site.slurm.extra_directives, *spec.slurm.extra_directives):
        name, value = directive_pair(text)
        found[name] = value
    skip = {name.removeprefix("--") for name in spec.slurm.skip_directives}
    forbidden = {name.removeprefix("--") for name in site.slurm.forbidden_directives}
    for name in skip - set(found) - forbidden:
        findings.note(f"slurm.skip_directives: no component has --{name}")
    kept = {name: value for name, value in found.items() if name not in skip | forbidden}
    job = Job(
        nodes=ask.nodes,
        is_head=ask.is_head,
        partition=kept.get("partition"),
        qos=kept.get("qos"),
        time_limit=options.time_limit,
    )
    check_job(job, spec, site, findings)
    for name in site.slurm.mandatory_directives:
        name = name.removeprefix("--")  # noqa: PLW2901 - the same name in its bare form
        if name not in kept:
            key = _SPEC_KEYS.get(name, name)
            if not hasattr(spec, key):
                key = "slurm.extra_directives"
            findings.add(spec.problem(key, f"site {site.name} asks for --{name} with every job"))
    return tuple(kept.items())


def _own(
    ask: Ask, partition: str | None, site: Site, options: JobOptions
) -> list[tuple[str, str | None]]:
    slurm, own = site.slurm, list[tuple[str, str | None]]()

    def add(name: str, value: str | None) -> None:
        if value is not None:
            own.append((name, value))

    add("partition", partition)
    add("account", account_for(ask.kind, site, options.account))
    add("qos", options.qos or ask.kind.qos)
    add("reservation", options.reservation)
    add("nodes", str(ask.nodes))
    if "ntasks" in {name.removeprefix("--") for name in slurm.mandatory_directives}:
        add("ntasks", str(ask.nodes))
    add("ntasks-per-node", "1")
    add("cpus-per-task", str(ask.cpus))
    if slurm.memory == "all":
        add("mem", "0")
    elif ask.mem_mib is not None:
        add("mem", f"{ask.mem_mib}M")
    if ask.gpus and slurm.gres != "none":
        typed = f"{ask.kind.gpu_type}:{ask.gpus}" if ask.kind.gpu_type else str(ask.gpus)
        if slurm.gres == "gres":
            add("gres", f"gpu:{typed}")
        else:
            add("gpus-per-node", typed)
    if ask.kind.is_whole(ask.nodes):
        own.append(("exclusive", None))
    add("constraint", with_features(ask.kind.constraint, ask.features))
    add("switches", ask.switches)
    add("time", options.time_limit)
    add("export", slurm.export)
    own.append(("no-kill", None))
    own.append(("no-requeue", None))
    add("signal", f"B:USR1@{slurm.signal_s}")
    return own


def account_for(kind: NodeKind, site: Site, account: str | None) -> str | None:
    """The account for nodes of a kind, where each kind's accounts end in their own way."""
    if account is None or kind.account_suffix is None:
        return account
    endings = {other.account_suffix or "" for other in site.node_kinds.values()}
    for ending in sorted(endings, key=len, reverse=True):
        if ending and account.endswith(ending):
            account = account.removesuffix(ending)
            break
    return account + kind.account_suffix


def _partition(ask: Ask, options: JobOptions, findings: Findings) -> str | None:
    """The head has its node kind's partition; workers the spec's, else their kind's. Where
    neither says one, the user's default, else Slurm's."""
    chosen = ask.kind.partition if ask.is_head else options.partition or ask.kind.partition
    if chosen is None and options.fallback_partition is not None:
        chosen = options.fallback_partition
        if options.partition is None:
            findings.note(f"partition: {chosen} (from SBATCH_PARTITION in the environment)")
    return chosen
