"""``exaslurm submit`` and ``exaslurm stop``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exaslurm.cli.options import Overrides, override_options
from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import (
    deployment_argument,
    deployment_site_option,
    json_option,
    spec_argument,
    verb,
)
from exaslurm.cli.verbs.key import DurationType
from exaslurm.errors import ExitCode

if TYPE_CHECKING:
    from exaslurm.submit.submit import SubmitResult


@verb("submit", short_help="Submit a spec; the same spec again attaches to what runs.")
@spec_argument
@override_options
@click.option("--dry-run", is_flag=True, help="Plan and render, print it, submit nothing.")
@click.option("--test-only", is_flag=True, help="Ask Slurm whether it would take the jobs.")
@click.option("--parsable", is_flag=True, help="Print job ids only: id[;cluster], one a line.")
@click.option("--wait", is_flag=True, help="Wait until every replica is ready; show progress.")
@click.option(
    "--timeout",
    metavar="TIME",
    type=DurationType(),
    default="1h",
    show_default=True,
    help="With --wait: give up after TIME (exit code 3); the deployment goes on.",
)
@json_option
def submit_command(
    spec: str,
    overrides: Overrides,
    dry_run: bool,
    test_only: bool,
    parsable: bool,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> ExitCode:
    """Submit SPEC: plan, render, sbatch, and (where the site allows it) start the router.

    The deployment's name is the key: submitting the same spec again attaches to it and submits
    nothing; a changed spec under the same name is refused.

    \b
    Examples:
        exaslurm submit spec.yaml --wait
        exaslurm submit spec.yaml -A myproject -t 04:00:00 --parsable
        exaslurm submit spec.yaml --dry-run
    """
    import os

    from exaslurm.submit.submit import submit

    if parsable and as_json:
        raise click.UsageError("choose one of --parsable and --json")
    source = overrides.source(spec)
    done = submit(
        source.path,
        text=source.text,
        site=overrides.site,
        dry_run=dry_run,
        test_only=test_only,
        environ=dict(os.environ),
        talk=talk,
    )
    if dry_run or test_only:
        _print_dry(done, as_json=as_json, parsable=parsable)
        return ExitCode.OK
    if not done.attached:
        for sentence in done.plan.spread:
            talk(f"spread: {sentence}")
        for note in done.plan.notes:
            talk(f"note: {note}")
    if parsable:
        for submission in done.submissions:
            cluster = f";{submission.cluster}" if submission.cluster else ""
            result(f"{submission.job_id}{cluster}")
    if wait:
        from exaslurm.cli.wait import wait_ready

        wait_ready(done.run_dir, timeout_s=timeout)
    if as_json:
        _print_json(done)
    elif not parsable:
        _print_text(done, waited=wait)
    return ExitCode.OK


def _print_dry(done: SubmitResult, *, as_json: bool, parsable: bool) -> None:
    from exaslurm.cli.plan_text import plan_text

    if as_json:
        _print_json(done)
    elif not parsable:
        result(plan_text(done.plan))
        for name in sorted(done.files):
            result(f"would write {done.run_dir.path}/gen/<n>/{name}")
        for answer in done.answers:
            result(f"slurm says: {answer}")
        talk("nothing was submitted, nothing was written")


def _print_json(done: SubmitResult) -> None:
    result_json(
        {
            "schema": "exaslurm/submit/1",
            "deployment": done.plan.deployment,
            "generation": done.generation,
            "plan_hash": done.plan.hash,
            "run_dir": str(done.run_dir.path),
            "attached": done.attached,
            "files": sorted(done.files),
            "answers": list(done.answers),
            "jobs": [
                {
                    "cell": submission.cell,
                    "job_id": submission.job_id,
                    "cluster": submission.cluster,
                    "job_name": submission.job_name,
                    "state": submission.state,
                }
                for submission in done.submissions
            ],
        }
    )


def _print_text(done: SubmitResult, *, waited: bool) -> None:
    name = done.plan.deployment
    jobs = ", ".join(f"{item.job_id} (cell {item.cell})" for item in done.submissions)
    if done.plan.layout == "local":
        jobs = "on this host, without Slurm"
    word = "attached to" if done.attached else "submitted as"
    result(f"{name}: {word} job {jobs}" if done.plan.layout != "local" else f"{name}: runs {jobs}")
    if not done.plan.gateway.start_with_submit:
        talk(f"start its router where you like: exaslurm gateway {name}")
    if not waited:
        talk(f"follow it: exaslurm status {name} --watch")
    talk(f"use it: exaslurm chat {name}; exaslurm key add {name}; exaslurm endpoint {name}")
    talk(f"stop it: exaslurm stop {name}")


@verb("stop", short_help="Stop a deployment: jobs, router, everything on the nodes.")
@deployment_argument
@click.option(
    "--timeout",
    metavar="TIME",
    type=DurationType(),
    default="2m",
    show_default=True,
    help="How long to wait until everything has ended.",
)
@json_option
@deployment_site_option
def stop_command(deployment: str, timeout: float, as_json: bool, site: str | None) -> None:
    """Stop DEPLOYMENT and wait until its jobs have ended. Stopping twice is no error."""
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.submit.stop import stop

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    stop(run_dir, timeout_s=timeout, talk=talk)
    if as_json:
        result_json(
            {"schema": "exaslurm/stop/1", "deployment": run_dir.deployment, "stopped": True}
        )
    else:
        result(f"{run_dir.deployment}: stopped")
