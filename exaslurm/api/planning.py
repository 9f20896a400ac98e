"""From a spec to a plan and its files, without effects on Slurm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from exaslurm.util.files import make_private_dir, write_atomic

if TYPE_CHECKING:
    from exaslurm.api.source import SpecSource
    from exaslurm.core.plan import Plan


def plan_spec(source: SpecSource, *, site: str | None = None) -> Plan:
    """The sealed plan of a spec; SpecError, SiteError or PlanError with every problem."""
    from exaslurm.submit.submit import make_plan_for

    return make_plan_for(source.path, text=source.text, site=site, environ=dict(os.environ))


def render_files(plan: Plan, directory: Path, *, site: str | None = None) -> dict[str, str]:
    """The files of a plan (relative name -> content), for use from ``directory``."""
    from exaslurm.render.scripts import render_all
    from exaslurm.submit.submit import run_dir_for, template_dirs_for

    environ = dict(os.environ)
    run_dir = run_dir_for(plan, environ, site=site)
    dirs = template_dirs_for(plan, environ, site=site)
    return render_all(plan, directory, run_dir.path, template_dirs=dirs)


def preview_files(source: SpecSource, *, site: str | None = None) -> dict[str, str]:
    """The files that submit would write now (relative name -> content)."""
    from exaslurm.submit.submit import submit

    done = submit(source.path, text=source.text, site=site, dry_run=True, environ=dict(os.environ))
    return dict(done.files)


def write_files(files: dict[str, str], directory: Path) -> list[Path]:
    """Write rendered files, private to their owner, and return their paths in order."""
    written = []
    for name, text in sorted(files.items()):
        path = directory / name
        make_private_dir(path.parent)
        write_atomic(path, text)
        written.append(path)
    return written
