"""``exaslurm doctor``: what a deployment needs here, what is there, what to do about it."""

from __future__ import annotations

from pathlib import Path

import click

from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import json_option, verb
from exaslurm.errors import ExitCode


@verb("doctor", short_help="Check login node and nodes; each line pass, warn or fail, with remedy.")
@click.option(
    "--site",
    metavar="NAME",
    envvar="EXASLURM_SITE",
    help="The site config to check against. Default: the deployment's, else generic.",
)
@click.option("-p", "--partition", metavar="P", help="Look at nodes of this partition, in a job.")
@click.option(
    "-N", "--nodes", metavar="N", type=click.IntRange(min=1), default=2, show_default=True,
    help="How many nodes of the partition; two or more are compared with each other.",
)  # fmt: skip
@click.option("-w", "--nodelist", metavar="LIST", help="Which nodes of the partition.")
@click.option(
    "--job", metavar="ID", help="Look at the nodes of a running job, beside what it does."
)
@click.option(
    "--deployment", metavar="NAME", help="Look at the nodes of all cells of a deployment."
)
@click.option(
    "--root", "roots", metavar="DIR", multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Look at a tree that was recorded on a node (/sys, /proc), instead of this host; "
    "several are compared.",
)  # fmt: skip
@click.option("-A", "--account", metavar="A", envvar="SBATCH_ACCOUNT", help="Slurm account.")
@click.option("-q", "--qos", metavar="Q", envvar="SBATCH_QOS", help="Quality of service.")
@click.option("--reservation", metavar="R", envvar="SBATCH_RESERVATION", help="Slurm reservation.")
@click.option(
    "--timeout", metavar="SECS", type=click.FloatRange(min=1), default=900.0, show_default=True,
    help="How long the job may wait in the queue and run.",
)  # fmt: skip
@json_option
def doctor_command(
    site: str | None,
    partition: str | None,
    nodes: int,
    nodelist: str | None,
    job: str | None,
    deployment: str | None,
    roots: tuple[Path, ...],
    account: str | None,
    qos: str | None,
    reservation: str | None,
    timeout: float,
    as_json: bool,
) -> ExitCode:
    """Check what a deployment needs: Slurm, Python, directories, network, limits on this host, and
    with --partition, --job or --deployment the same and the devices on nodes, which are compared
    and measured with each other.

    Exit code 0 if nothing failed, 6 if something did.
    """
    import os
    import sys

    from exaslurm.cli.doctor_text import doctor_text, headline
    from exaslurm.core.codec import to_jsonable
    from exaslurm.doctor.model import report
    from exaslurm.doctor.nodes import Where
    from exaslurm.doctor.run import Question, examine
    from exaslurm.site.load import load_site

    ways = [bool(way) for way in (partition or nodelist, job, deployment, roots)]
    if sum(ways) > 1:
        raise click.UsageError("give one of --partition, --job, --deployment and --root")
    environ = dict(os.environ)
    jobs, usual = _jobs(job, deployment, environ)
    config = load_site(site or usual, environ)
    where = None
    if partition or nodelist:
        where = Where(
            partition=partition, count=nodes, account=account, qos=qos,
            reservation=reservation, nodelist=nodelist,
        )  # fmt: skip
    question = Question(where=where, jobs=jobs, roots=roots, timeout_s=timeout)
    hosts = examine(config, environ, python=sys.executable, question=question, talk=talk)
    found = report(config.name, hosts)
    if as_json:
        result_json(to_jsonable(found))
    else:
        result(doctor_text(found))
        talk(headline(found))
    return ExitCode.NOT_READY if found.failed else ExitCode.OK


def _jobs(
    job: str | None, deployment: str | None, environ: dict[str, str]
) -> tuple[dict[str, list[str]], str]:
    """The running jobs to look into, with the kinds of node of their components where known, and
    the site that they were planned for."""
    if job is not None:
        return {job: []}, "generic"
    if deployment is None:
        return {}, "generic"
    from exaslurm.api.locate import find_run_dir
    from exaslurm.errors import DeploymentError
    from exaslurm.submit.records import read_plan, read_submissions
    from exaslurm.submit.survey import job_key

    latest = find_run_dir(deployment, environ, site=None).current()
    plan = read_plan(latest) if latest is not None else None
    known = read_submissions(latest).values() if latest is not None else ()
    submitted = [
        item for item in known if item.state == "submitted" and item.job_id not in (None, "local")
    ]
    if plan is None or not submitted:
        raise DeploymentError(
            f"deployment {deployment!r} has no job in Slurm",
            remedy=f"'exaslurm status {deployment}' shows how it is",
        )
    jobs = {
        job_key(item): [component.kind for component in plan.cell(item.cell).components]
        for item in submitted
    }
    return jobs, plan.site
