"""``exaslurm init``, ``validate`` and ``schema``: writing a spec and checking it."""

from __future__ import annotations

from pathlib import Path

import click

from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import json_option, site_option, spec_argument, verb
from exaslurm.errors import ExitCode, UserError


@verb("init", short_help="Print a commented spec to begin with.")
@click.argument("name", required=False, default="hello")
@click.option(
    "--site",
    metavar="NAME",
    envvar="EXASLURM_SITE",
    default="generic",
    show_default=True,
    help="The site it is for (exaslurm site list).",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it to FILE (which must not exist) instead of stdout.",
)
def init_command(name: str, site: str, output: Path | None) -> None:
    """Print a spec for a deployment called NAME, with a comment on every key."""
    import os

    from exaslurm.api.starter import starter_spec
    from exaslurm.site.load import load_site

    text = starter_spec(name, load_site(site, dict(os.environ)))
    if output is None:
        result(text.rstrip("\n"))
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{output} exists already", remedy="choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from None
    talk(f"wrote {output}; next: exaslurm validate {output}")


@verb("validate", short_help="Check a spec against its site; list every problem.")
@spec_argument
@site_option
@json_option
def validate_command(spec: str, site: str | None, as_json: bool) -> ExitCode:
    """Check SPEC: every key and value, and whether the site can serve it. Asks Slurm nothing."""
    from exaslurm.api.planning import plan_spec
    from exaslurm.api.source import SpecSource

    try:
        plan = plan_spec(SpecSource.of(Path(spec)), site=site)
    except UserError as error:
        if not as_json:
            raise
        problems = str(error).splitlines()
        result_json({"schema": "exaslurm/validate/1", "valid": False, "problems": problems})
        return error.exit_code
    if as_json:
        result_json({"schema": "exaslurm/validate/1", "valid": True, "problems": []})
    else:
        replicas = sum(item.count for cell in plan.cells for item in cell.replica_sets)
        result(f"{spec}: ok ({plan.deployment}: cells {len(plan.cells)}, replicas {replicas})")
    return ExitCode.OK


@verb("schema", short_help="Print the JSON Schema of specs or site configs, for editors.")
@click.argument("kind", type=click.Choice(["spec", "site"]))
def schema_command(kind: str) -> None:
    """Print the JSON Schema of a cluster spec or a site config.

    \b
    Editors with a YAML language server use it by a first line such as
        # yaml-language-server: $schema=spec.schema.json
    """
    if kind == "spec":
        from exaslurm.spec.schema import spec_schema as make_schema
    else:
        from exaslurm.site.schema import site_schema as make_schema
    result_json(make_schema())
