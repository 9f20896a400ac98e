"""``exaslurm doctor``: what a deployment needs here, what is there, what to do about it."""

from __future__ import annotations

import click

from exaslurm.cli.output import paint, result, result_json, talk
from exaslurm.cli.verb import json_option, verb
from exaslurm.errors import ExitCode

_STYLES = {"pass": "good", "warn": "warn", "fail": "bad", "skip": "dim"}


@verb("doctor", short_help="Check this login node; each line pass, warn or fail, with a remedy.")
@click.option(
    "--site",
    metavar="NAME",
    envvar="EXASLURM_SITE",
    default="generic",
    show_default=True,
    help="The site config to check against.",
)
@json_option
def doctor_command(site: str, as_json: bool) -> ExitCode:
    """Check what a deployment needs on this host: Slurm, Python, directories, network, limits.

    Exit code 0 if nothing failed, 6 if something did.
    """
    import os
    import sys

    from exaslurm.core.codec import to_jsonable
    from exaslurm.doctor.run import examine
    from exaslurm.site.load import load_site

    environ = dict(os.environ)
    report = examine(load_site(site, environ), environ, python=sys.executable)
    if as_json:
        result_json(to_jsonable(report))
    else:
        width = max(len(check.name) for check in report.checks)
        for check in report.checks:
            outcome = paint(check.outcome, _STYLES[check.outcome])
            result(f"{outcome}  {check.name:<{width}}  {check.value}")
            if check.remedy is not None:
                result(f"      {'':<{width}}  remedy: {check.remedy}")
        talk(f"site {report.site} on {report.host}: {report.failed} failed, {report.warned} warned")
    return ExitCode.NOT_READY if report.failed else ExitCode.OK
