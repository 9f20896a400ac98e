"""Batch scripts of a plan. Pure: the same plan and paths give the same bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from exaslurm.core.codec import dumps
from exaslurm.core.plan import CellPlan, ComponentPlan, GatewayJobPlan, Plan
from exaslurm.render import templates
from exaslurm.render.quoting import output_path
from exaslurm.rundir import GenerationDir, RunDir

Directive = tuple[str, str | None]

# In the place of a cell's name: no cell is called so.
GATEWAY = "gateway"
_ROLES = {"head": "head", "worker": "workers", "both": "head and workers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentText:
    """What the template prints of one component."""

    het_group: int
    roles: str
    nodes: int
    kind: str
    directives: tuple[Directive, ...]


def job_name(plan: Plan, cell: CellPlan) -> str:
    """The name of a cell's job when its script is submitted by hand."""
    return f"exa-{plan.deployment}-{cell.name}"


def gateway_job_name(deployment: str, run_dir: Path) -> str:
    """The one name of all jobs of a deployment's gateway. Deployments of one name in different
    state directories are different ones."""
    mark = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]
    return f"exa-{deployment}-{GATEWAY}-{mark}"


def render_script(
    plan: Plan,
    cell: CellPlan,
    gen_dir: Path,
    run_dir: Path,
    template_dirs: Sequence[Path] = (),
) -> str:
    """The batch script of one cell.

    ``gen_dir`` holds (or will hold) ``plan.json``; logs go below it. ``run_dir`` is the
    deployment's directory. Raises SiteError for a broken template, PlanError for a value that
    has no place in a script.
    """
    return _render(templates.environment(template_dirs), plan, cell, gen_dir, run_dir)


def render_all(
    plan: Plan, gen_dir: Path, run_dir: Path, template_dirs: Sequence[Path] = ()
) -> dict[str, str]:
    """Every file that bootstrap needs, by its name relative to ``gen_dir``: ``plan.json`` and
    one script per cell, and one of the gateway where that runs in a job. Layout ``local`` has no
    scripts."""
    files = {"plan.json": dumps(plan, indent=1)}
    if plan.layout != "local":
        environment = templates.environment(template_dirs)
        for cell in plan.cells:
            text = _render(environment, plan, cell, gen_dir, run_dir)
            files[f"scripts/{cell.name}.sbatch"] = text
        if plan.gateway.job is not None:
            files[f"scripts/{GATEWAY}.sbatch"] = _render_gateway(
                environment, plan, plan.gateway.job, gen_dir, run_dir
            )
    return files


def _render(
    environment: jinja2.Environment, plan: Plan, cell: CellPlan, gen_dir: Path, run_dir: Path
) -> str:
    log = GenerationDir(gen_dir).logs(cell.name) / "batch.log"
    return templates.render(
        environment,
        "cell.sbatch.j2",
        plan=plan,
        cell=cell,
        container=plan.node.container,
        components=[_component(plan, cell, part, log) for part in cell.components],
        gen_dir=str(gen_dir),
        run_dir=str(run_dir),
    )


def _render_gateway(
    environment: jinja2.Environment,
    plan: Plan,
    job: GatewayJobPlan,
    gen_dir: Path,
    run_dir: Path,
) -> str:
    own: tuple[Directive, ...] = (
        ("job-name", gateway_job_name(plan.deployment, run_dir)),
        ("output", output_path(RunDir(run_dir).router_log)),
        ("open-mode", "append"),
    )
    part = job.component
    component = ComponentText(
        het_group=0,
        roles=GATEWAY,
        nodes=1,
        kind=part.kind,
        directives=(*own, *part.directives),
    )
    return templates.render(
        environment,
        "gateway.sbatch.j2",
        plan=plan,
        container=None,
        components=[component],
        gen_dir=str(gen_dir),
        run_dir=str(run_dir),
    )


def _component(plan: Plan, cell: CellPlan, part: ComponentPlan, log: Path) -> ComponentText:
    own: list[Directive] = []
    if part is cell.components[0]:
        # The batch script runs in the first component only, and so does its output.
        own = [("job-name", job_name(plan, cell)), ("output", output_path(log))]
    planned = {name for name, _ in part.directives}
    return ComponentText(
        het_group=part.het_group,
        roles=_ROLES[part.role],
        nodes=part.nodes,
        kind=part.kind,
        directives=(*(item for item in own if item[0] not in planned), *part.directives),
    )
