"""``exaslurm site``: the machines that are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exaslurm.cli.output import result, result_json, table, talk
from exaslurm.cli.verb import NearestGroup, json_option, verb
from exaslurm.errors import ExitCode, UserError

if TYPE_CHECKING:
    from exaslurm.api.site_check import SiteCheck


@click.group("site", cls=NearestGroup, short_help="List, show and check site configs.")
def site_command() -> None:
    """Site configs say what is special about a machine. They are looked for in the directories
    of EXASLURM_SITE_CONFIG, /etc/exaslurm/sites, ~/.config/exaslurm/sites and the package."""


@verb("list", short_help="The sites that are known here.")
@json_option
def list_command(as_json: bool) -> None:
    """List the known sites and the files that define them."""
    import os

    from exaslurm.site.load import load_site, site_files

    environ = dict(os.environ)
    rows, sites = [], []
    for name, path in site_files(environ).items():
        try:
            about = load_site(name, environ).description or ""
        except UserError as error:
            about = f"broken: {str(error).splitlines()[0]}"
        rows.append([name, about, str(path)])
        sites.append({"name": name, "description": about, "path": str(path)})
    if as_json:
        result_json({"schema": "exaslurm/sites/1", "sites": sites})
    else:
        result(table(["SITE", "ABOUT", "FILE"], rows))


@verb("show", short_help="A site config with all its defaults.")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show the site config NAME, every default filled in."""
    import os

    import yaml

    from exaslurm.site.load import load_site

    site = load_site(name, dict(os.environ))
    data = site.model_dump(mode="json", by_alias=True)
    if as_json:
        result_json(data)
    else:
        for key in site.unverified:
            result(f"# not verified on the machine: {key}")
        result(yaml.safe_dump(data, sort_keys=False).rstrip("\n"))


@verb("check", short_help="Check a site config and every script that comes of it.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every site that is known here.")
@click.option(
    "--output", metavar="DIR", type=click.Path(), help="Write the scripts into DIR/SITE, to read."
)
@json_option
def check_command(
    names: tuple[str, ...], every: bool, output: str | None, as_json: bool
) -> ExitCode:
    """Check site configs: names, or files. Each is rendered for all of its kinds of workers, with
    a head of its own and without, in every container runtime, with the templates that are in use
    here. bash and (where it is installed) shellcheck look at the scripts."""
    import os

    from exaslurm.api.planning import write_files
    from exaslurm.api.site_check import check_site
    from exaslurm.site.load import site_names

    environ = dict(os.environ)
    if every == bool(names):
        raise UserError("give the names of sites, or --all")
    checks = [check_site(name, environ) for name in (site_names(environ) if every else names)]
    if output is not None:
        for check in checks:
            write_files(dict(check.scripts), Path(output) / Path(check.name).stem)
    if as_json:
        result_json({"schema": "exaslurm/site-check/2", "sites": [_as_json(it) for it in checks]})
    else:
        for check in checks:
            for line in _as_text(check):
                result(line)
    return ExitCode.USAGE if any(check.problems for check in checks) else ExitCode.OK


def _as_json(check: SiteCheck) -> dict[str, object]:
    return {
        "name": check.name,
        "valid": not check.problems,
        "problems": list(check.problems),
        "scripts": len(check.scripts),
        "linters": list(check.linters),
        "unverified": list(check.site.unverified) if check.site else [],
    }


def _as_text(check: SiteCheck) -> Iterator[str]:
    if check.problems:
        yield f"{check.name}: {len(check.problems)} problem(s)"
        for problem in check.problems:
            yield f"  {problem}"
        return
    by = f", checked by {' and '.join(check.linters)}" if check.linters else ""
    scripts = f" ({len(check.scripts)} scripts{by})" if check.scripts else ""
    yield f"{check.name}: ok{scripts}"
    for key in check.site.unverified if check.site else ():
        yield f"  not verified on the machine: {key}"


@verb("draft", short_help="Write a first site config from a live Slurm.")
@click.argument("name", required=False)
@click.option(
    "--topo",
    "topologies",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="What `exaslurm topo --json` or `lstopo --of xml` said on a node. More than one may be "
    "given. On a node of the cluster, it is looked at without being asked.",
)
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="Write it to FILE.")
def draft_command(name: str | None, topologies: tuple[Path, ...], output: Path | None) -> None:
    """Ask Slurm (scontrol, three questions) for nodes, partitions and settings, and write a site
    config NAME from them (default: the cluster's name). What Slurm does not know is in comments
    and under `unverified`.

    To have the nodes looked at too: srun -N1 exaslurm topo --json > node.json, then --topo
    node.json.
    """
    from exaslurm.api.site_draft import draft_site
    from exaslurm.util.files import create_once

    if name is None and output is not None:
        name = output.stem
    text = draft_site(name, topologies=topologies)
    if output is None:
        result(text.rstrip("\n"))
    elif create_once(output, text):
        talk(f"written to {output}; `exaslurm site check {output}` checks it")
    else:
        raise UserError(f"{output} is there already", remedy="give another --output")


for _command in (list_command, show_command, check_command, draft_command):
    site_command.add_command(_command)
