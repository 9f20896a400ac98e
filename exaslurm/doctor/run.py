"""One examination: the login node, and the nodes that were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exaslurm.doctor import nodes
from exaslurm.doctor.login import examine_login, node_python
from exaslurm.doctor.model import HostReport, compared
from exaslurm.doctor.needs import kind_of, needs_of
from exaslurm.doctor.recorded import examine_trees
from exaslurm.errors import SlurmError, UserError
from exaslurm.site.model import Site
from exaslurm.slurm.client import Slurm

Talk = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to look at besides this host: a job of our own, running jobs, or (then alone) recorded
    trees. ``jobs`` maps their ids to the kinds of node of their components, where known."""

    where: nodes.Where | None = None
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()
    timeout_s: float = 900.0


def examine(
    site: Site,
    environ: Mapping[str, str],
    *,
    python: str,
    question: Question = Question(),
    talk: Talk = lambda _: None,
) -> list[HostReport]:
    """Reports of all hosts. ``python`` is what nodes run where the site config names none.

    Raises SlurmError (the job is refused, Slurm does not answer), WaitTimeout, UserError.
    """
    chosen = node_python(site, environ, python)
    if question.roots:
        kind = kind_of(site, None)
        needs = needs_of(site, environ, kind)
        return compared(examine_trees(question.roots, needs, chosen))
    found = [examine_login(site, environ, python=python)]
    wanted = question.where is not None or question.jobs
    if not wanted:
        return found
    if site.scheduler == "local":
        raise UserError(
            f"site {site.name!r} has no Slurm: there are no other nodes to look at",
            remedy="without --partition, --job and --deployment this host is checked",
        )
    partition = question.where.partition if question.where is not None else None
    kind = kind_of(site, partition) if partition else None
    needs = needs_of(site, environ, kind)
    with nodes.witness(needs) as witness:
        needs = dataclasses.replace(needs, witness=witness)
        if question.where is not None:
            seen = nodes.in_job(
                site, kind, question.where, needs,
                environ=environ, python=chosen, timeout_s=question.timeout_s, talk=talk,
            )  # fmt: skip
            return [*found, *compared(seen)]
        for ident, job in Slurm(environ).jobs(list(question.jobs)).items():
            if not job.is_running:
                raise SlurmError(
                    f"job {ident} does not run ({job.state})",
                    remedy="give a job that runs, or --partition",
                )
            kinds = question.jobs[ident]
            for component in job.components:
                name = kinds[component.offset] if component.offset < len(kinds) else ""
                own = needs_of(site, environ, site.node_kinds.get(name))
                seen = nodes.in_allocation(
                    site, job, component, dataclasses.replace(own, witness=witness),
                    environ=environ, python=chosen, talk=talk,
                )  # fmt: skip
                found += compared(seen)
    return found
