"""``exaslurm plan`` and ``exaslurm render``: what would be submitted; nothing is."""

from __future__ import annotations

from pathlib import Path

import click

from exaslurm.cli.options import Overrides, override_options
from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import json_option, spec_argument, verb


@verb("plan", short_help="Show where what would run.")
@spec_argument
@override_options
@json_option
def plan_command(spec: str, overrides: Overrides, as_json: bool) -> None:
    """Plan SPEC and show it: cells, nodes, replicas, what is asked of Slurm. Asks and writes
    nothing. The JSON is plan.json as the job reads it."""
    from exaslurm.api.planning import plan_spec
    from exaslurm.cli.plan_text import plan_text
    from exaslurm.core.codec import to_jsonable

    plan = plan_spec(overrides.source(spec), site=overrides.site)
    if as_json:
        result_json(to_jsonable(plan))
    else:
        result(plan_text(plan))


@verb("render", short_help="Write the batch scripts for use with plain sbatch.")
@spec_argument
@override_options
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory to write plan.json and scripts/ into (made if missing).",
)
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the scripts, write nothing.")
@click.option("--cell", metavar="CELL", help="Only this cell's script, with --stdout.")
@json_option
def render_command(
    spec: str,
    overrides: Overrides,
    output: Path | None,
    to_stdout: bool,
    cell: str | None,
    as_json: bool,
) -> None:
    """Render SPEC into batch scripts that run by hand: sbatch DIR/scripts/c000.sbatch.

    Rendering is deterministic: the same spec and site give the same bytes.
    """
    from exaslurm.api.planning import plan_spec, preview_files, render_files, write_files
    from exaslurm.rundir import GenerationDir

    if to_stdout == (output is not None):
        raise click.UsageError("give either --output DIR or --stdout")
    source = overrides.source(spec)
    plan = plan_spec(source, site=overrides.site)
    if output is None:
        files = preview_files(source, site=overrides.site)
    else:
        files = render_files(plan, output.absolute(), site=overrides.site)
    scripts = {name: text for name, text in files.items() if name.startswith("scripts/")}
    if not scripts:
        talk(f"site {plan.site!r} has no Slurm, so there are no batch scripts")
    if cell is not None:
        wanted = f"scripts/{cell}.sbatch"
        if wanted not in scripts:
            known = ", ".join(Path(name).stem for name in scripts)
            raise click.UsageError(f"no cell {cell!r}; cells: {known}")
        scripts = {wanted: scripts[wanted]}
    if output is None:
        if as_json:
            result_json({"schema": "exaslurm/render/1", "plan": plan.hash, "files": scripts})
        else:
            for text in scripts.values():
                result(text.rstrip("\n"))
        return
    # Slurm before 23.02 does not make the directory of a job's output file.
    GenerationDir(output.absolute()).make(tuple(part.name for part in plan.cells))
    written = write_files(files, output.absolute())
    if as_json:
        paths = [str(path) for path in written]
        result_json({"schema": "exaslurm/render/1", "plan": plan.hash, "files": paths})
        return
    for path in written:
        result(str(path))
    if scripts:
        talk(f"submit by hand: sbatch {output}/scripts/<cell>.sbatch")
