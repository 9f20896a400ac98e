"""What must hold between the keys of a site config."""

from __future__ import annotations

from collections.abc import Iterator

from exaslurm.core.ports import RAY_WORKERS_LAST
from exaslurm.site.locks import SPEC_PREFIX
from exaslurm.site.model import NodeKind, Site
from exaslurm.site.paths import UnknownVariableError, resolve
from exaslurm.site.queues import Queue
from exaslurm.util.checked import keys_at
from exaslurm.util.fields import time_limit_s
from exaslurm.util.yaml_lines import Problem, key_path, nearest

MAX_RAM_PATH = 16


def cross_problems(site: Site) -> list[Problem]:
    """Problems that no single key shows."""
    return [
        *_kinds(site),
        *_partitions(site),
        *_queues(site),
        *_ports(site),
        *_paths(site),
        *_internet(site),
        *_directives(site),
        *_named_keys(site),
    ]


def _kinds(site: Site) -> Iterator[Problem]:
    for key, chosen in (("workers.kind", site.workers.kind), ("head.kind", site.head.kind)):
        if chosen is not None and chosen not in site.node_kinds:
            yield site.problem(
                key, f"unknown node kind {chosen!r}{nearest(chosen, site.node_kinds)}"
            )
    for name, kind in site.node_kinds.items():
        here = f"node_kinds.{name}"
        if kind.cpus is not None and kind.reserved_cores >= kind.cpus:
            yield site.problem(
                f"{here}.reserved_cores", f"{kind.reserved_cores} of {kind.cpus} cpus leaves none"
            )
        yield from _gpus(site, here, kind)


def _gpus(site: Site, here: str, kind: NodeKind) -> Iterator[Problem]:
    for key in ("gpu_type", "require_gpus"):
        if getattr(kind, key) and not kind.gpus:
            yield site.problem(f"{here}.{key}", "needs gpus, the number of GPUs of a node")
    if kind.gpu_cpus and len(kind.gpu_cpus) != kind.gpus:
        yield site.problem(f"{here}.gpu_cpus", f"{len(kind.gpu_cpus)} entries, {kind.gpus} gpus")


def _partitions(site: Site) -> Iterator[Problem]:
    """Where the site lists what there is, node kinds may name nothing else."""
    for name, kind in site.node_kinds.items():
        for key, listed in (("partition", site.partitions), ("qos", site.qos)):
            chosen = getattr(kind, key)
            if chosen is not None and listed and chosen not in listed:
                yield site.problem(
                    f"node_kinds.{name}.{key}", f"unknown {key} {chosen!r}{nearest(chosen, listed)}"
                )


def _queues(site: Site) -> Iterator[Problem]:
    queues: dict[str, Queue] = {f"partitions.{name}": it for name, it in site.partitions.items()}
    queues |= {f"qos.{name}": it for name, it in site.qos.items()}
    for key, queue in queues.items():
        sizes = [item.nodes for item in queue.time_by_nodes]
        if sizes != sorted(set(sizes)):
            yield site.problem(f"{key}.time_by_nodes", f"sizes must rise (got {sizes})")
        most = queue.most_nodes()
        if queue.min_nodes and most and queue.min_nodes > most:
            yield site.problem(
                f"{key}.min_nodes", f"{queue.min_nodes} is more than a job may have, {most}"
            )


def _ports(site: Site) -> Iterator[Problem]:
    ports = site.ports
    if ports.block <= RAY_WORKERS_LAST:
        yield site.problem("ports.block", f"must be at least {RAY_WORKERS_LAST + 1}")
    elif ports.last - ports.first + 1 < ports.block:
        yield site.problem(
            "ports.last", f"{ports.first}-{ports.last} holds no block of {ports.block} ports"
        )


def _paths(site: Site) -> Iterator[Problem]:
    alone = {
        "storage.state": site.storage.state,
        "storage.ram": site.storage.ram,
        "python": site.python,
        "templates": site.templates,
    }
    with_more = {"storage.shared": site.storage.shared, "storage.local": site.storage.local}
    with_more |= {f"env.{name}": value for name, value in site.env.items()}
    more: dict[str, str | None] = dict.fromkeys(("ACCOUNT", *site.variables), "value")
    for key, text in (alone | with_more).items():
        try:
            resolved = resolve(
                text or "",
                user="user",
                home="/home/user",
                variables=more if key in with_more else None,
            )
        except UnknownVariableError as error:
            remedy = "set it in prologue instead"
            if key.startswith("storage."):
                remedy = "name it in variables" if key in with_more else "write the path out"
            yield site.problem(key, f"{error} (got {text!r}); {remedy}")
            continue
        if key == "storage.ram" and len(resolved) > MAX_RAM_PATH:
            yield site.problem(
                key,
                f"longer than {MAX_RAM_PATH} characters (got {text!r}); socket paths are limited "
                "to 107 bytes",
            )


def _internet(site: Site) -> Iterator[Problem]:
    internet = site.internet
    if internet.access == "proxy" and internet.proxy is None:
        yield site.problem("internet.proxy", "is required with access proxy")
    if internet.access != "proxy" and internet.proxy is not None:
        yield site.problem("internet.access", "must be proxy where there is one")


def _directives(site: Site) -> Iterator[Problem]:
    both = set(site.slurm.mandatory_directives) & set(site.slurm.forbidden_directives)
    for name in sorted(both):
        yield site.problem("slurm.mandatory_directives", f"{name} is also forbidden")
    limits = site.limits
    default, most = limits.default_time, limits.max_time
    if default and most and time_limit_s(default) > time_limit_s(most):
        yield site.problem("limits.default_time", f"{default} is above max_time, {most}")


def _named_keys(site: Site) -> Iterator[Problem]:
    """What ``unverified`` and ``locks`` name is a key that there is. (Keys of a spec are the
    planner's to know.)"""
    for key, listed in (("unverified", site.unverified), ("locks", site.locks)):
        for index, text in enumerate(listed):
            name = text.split(" ", 1)[0]
            if key == "locks" and name.startswith(SPEC_PREFIX):
                continue
            hint = _unknown_key(site, name)
            if hint is not None:
                yield site.problem(f"{key}[{index}]", f"there is no key {name!r}{hint}")


def _unknown_key(site: Site, name: str) -> str | None:
    """None if the site config may have that key, else what was perhaps meant."""
    path = key_path(name)
    for end in range(1, len(path) + 1):
        known = keys_at(Site, path[: end - 1])
        if not known:  # a mapping by names of the site's own choice
            above = ".".join(str(part) for part in path[: end - 1])
            known = {"node_kinds": [*site.node_kinds], "partitions": [*site.partitions]}.get(
                above, [*site.qos] if above == "qos" else [str(path[end - 1])]
            )
        if path[end - 1] not in known:
            return nearest(str(path[end - 1]), known)
    return None if path else ""
