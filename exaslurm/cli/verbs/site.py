"""``exaslurm site``: the machines that are known."""

from __future__ import annotations

import click

from exaslurm.cli.output import result, result_json, table
from exaslurm.cli.verb import NearestGroup, json_option, verb
from exaslurm.errors import ExitCode, UserError


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

    data = load_site(name, dict(os.environ)).model_dump(mode="json", by_alias=True)
    if as_json:
        result_json(data)
    else:
        result(yaml.safe_dump(data, sort_keys=False).rstrip("\n"))


@verb("check", short_help="Check a site config (a name or a file).")
@click.argument("name")
@json_option
def check_command(name: str, as_json: bool) -> ExitCode:
    """Check the site config NAME, or a file."""
    import os

    from exaslurm.site.load import load_site

    try:
        site = load_site(name, dict(os.environ))
    except UserError as error:
        if not as_json:
            raise
        problems = str(error).splitlines()
        result_json({"schema": "exaslurm/site-check/1", "valid": False, "problems": problems})
        return error.exit_code
    if as_json:
        result_json({"schema": "exaslurm/site-check/1", "valid": True, "problems": []})
    else:
        result(f"{name}: ok")
        for key in site.unverified:
            result(f"  not verified on the machine: {key}")
    return ExitCode.OK


for _command in (list_command, show_command, check_command):
    site_command.add_command(_command)
