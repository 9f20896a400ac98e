"""What must hold between the keys of a site config."""

from __future__ import annotations

from collections.abc import Iterator

from exaslurm.core.ports import RAY_WORKERS_LAST
from exaslurm.site.model import Site
from exaslurm.site.paths import UnknownVariableError, resolve
from exaslurm.util.fields import time_limit_s
from exaslurm.util.yaml_lines import Problem, nearest

MAX_RAM_PATH = 16


def cross_problems(site: Site) -> list[Problem]:
    """Problems that no single key shows."""
    return [
        *_kinds(site),
        *_partitions(site),
        *_ports(site),
        *_paths(site),
        *_directives(site),
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
        if kind.gpu_type and not kind.gpus:
            yield site.problem(f"{here}.gpu_type", "needs gpus, the number of GPUs of a node")
        if kind.require_gpus and not kind.gpus:
            yield site.problem(f"{here}.require_gpus", "needs gpus, the number of GPUs of a node")


def _partitions(site: Site) -> Iterator[Problem]:
    if not site.partitions:
        return
    for name, kind in site.node_kinds.items():
        if kind.partition is not None and kind.partition not in site.partitions:
            yield site.problem(
                f"node_kinds.{name}.partition",
                f"unknown partition {kind.partition!r}{nearest(kind.partition, site.partitions)}",
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
    paths = {
        "storage.state": site.storage.state,
        "storage.shared": site.storage.shared,
        "storage.local": site.storage.local,
        "storage.ram": site.storage.ram,
        "python": site.python,
        "templates": site.templates,
    } | {f"env.{name}": value for name, value in site.env.items()}
    for key, text in paths.items():
        try:
            resolved = resolve(text or "", user="user", home="/home/user")
        except UnknownVariableError as error:
            yield site.problem(key, f"{error} (got {text!r}); set it in prologue instead")
            continue
        if key == "storage.ram" and len(resolved) > MAX_RAM_PATH:
            yield site.problem(
                key,
                f"longer than {MAX_RAM_PATH} characters (got {text!r}); socket paths are limited "
                "to 107 bytes",
            )


def _directives(site: Site) -> Iterator[Problem]:
    both = set(site.slurm.mandatory_directives) & set(site.slurm.forbidden_directives)
    for name in sorted(both):
        yield site.problem("slurm.mandatory_directives", f"{name} is also forbidden")
    limits = site.limits
    default, most = limits.default_time, limits.max_time
    if default and most and time_limit_s(default) > time_limit_s(most):
        yield site.problem("limits.default_time", f"{default} is above max_time, {most}")
