"""``exaslurm rollout``, ``rollback`` and ``history``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    from exaslurm.rollout.start import PolicyOptions, Started


# Generic from click 8.3 on only.
if TYPE_CHECKING:
    _TupleType = click.ParamType[tuple[float, ...]]
else:
    _TupleType = click.ParamType


class StepsType(_TupleType):
    """``5,25,50,100``: ascending shares in percent, the last one 100."""

    name = "steps"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            steps = tuple(float(part.strip().rstrip("%")) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} are no shares such as 5,25,50,100", param, ctx)
        if list(steps) != sorted(set(steps)) or steps[0] <= 0 or steps[-1] != 100:
            self.fail(f"{value!r}: give ascending shares above 0, the last one 100", param, ctx)
        return steps


_POLICY = (
    click.option(
        "--steps",
        metavar="PERCENT,...",
        type=StepsType(),
        help="Shares of the requests, one after the other, such as 5,25,50,100.",
    ),
    click.option("--hold", metavar="TIME", type=DurationType(), help="How long each is held."),
    click.option(
        "--min-requests",
        metavar="N",
        type=click.IntRange(min=0),
        help="Requests that the new version shall have got in a step.",
    ),
    click.option(
        "--surge",
        metavar="N",
        type=click.IntRange(min=1),
        help="Cells that come up at a time, and may have a job more than before.",
    ),
    click.option("--wait", is_flag=True, help="Wait for its end; show what happens."),
    click.option(
        "--timeout",
        metavar="TIME",
        type=DurationType(),
        default="12h",
        show_default=True,
        help="With --wait: give up after TIME (exit code 3); the rollout goes on.",
    ),
)


def policy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How the rollout goes about it; what is not given is the spec's."""
    for option in reversed(_POLICY):
        function = option(function)
    return function


def _options(
    steps: tuple[float, ...] | None,
    hold: float | None,
    min_requests: int | None,
    surge: int | None,
) -> PolicyOptions:
    from exaslurm.rollout.start import PolicyOptions

    return PolicyOptions(steps_percent=steps, hold_s=hold, min_requests=min_requests, surge=surge)


@verb("rollout", short_help="Bring a running deployment over to another spec, by steps.")
@spec_argument
@override_options
@policy_options
@json_option
def rollout_command(
    spec: str,
    overrides: Overrides,
    steps: tuple[float, ...] | None,
    hold: float | None,
    min_requests: int | None,
    surge: int | None,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> ExitCode:
    """Bring the deployment that SPEC names, and that runs with another spec, over to SPEC.

    A cell of the new version comes up beside the old ones and gets a growing share of the requests.
    If it does not answer, fails more often or is slower than the old version, all requests go back
    to the old one by themselves. With all requests at the new version the other cells go over one
    by one. The supervisor does it: this command returns at once unless --wait is given (exit code 6
    if it was taken back).

    \b
    Examples:
        exaslurm rollout spec.yaml --wait
        exaslurm rollout spec.yaml --steps 10,50,100 --hold 10m
    """
    import os

    from exaslurm.rollout.start import rollout

    source = overrides.source(spec)
    started = rollout(
        source.path,
        text=source.text,
        site=overrides.site,
        options=_options(steps, hold, min_requests, surge),
        environ=dict(os.environ),
        talk=talk,
    )
    return _finish(started, wait=wait, timeout_s=timeout, as_json=as_json)


@verb("rollback", short_help="Take a rollout back, under way or done.")
@deployment_argument
@click.option(
    "--to", metavar="GENERATION", type=click.IntRange(min=1), help="Another than the one before."
)
@policy_options
@json_option
@deployment_site_option
def rollback_command(
    deployment: str,
    to: int | None,
    steps: tuple[float, ...] | None,
    hold: float | None,
    min_requests: int | None,
    surge: int | None,
    wait: bool,
    timeout: float,
    as_json: bool,
    site: str | None,
) -> ExitCode:
    """Take back what the last rollout of DEPLOYMENT did.

    One that is under way is stopped: all requests go to the old version again, what there is of the
    new one is drained and ends. After one that is done, the generation before comes back with the
    plan that it had, as a generation of its own, in one step that is held for a minute.
    'exaslurm history' shows the generations.
    """
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.rollout.start import rollback

    environ = dict(os.environ)
    started = rollback(
        find_run_dir(deployment, environ, site=site),
        to=to,
        options=_options(steps, hold, min_requests, surge),
        environ=environ,
        talk=talk,
    )
    return _finish(started, wait=wait, timeout_s=timeout, as_json=as_json)


def _finish(started: Started, *, wait: bool, timeout_s: float, as_json: bool) -> ExitCode:
    from exaslurm.core.codec import to_jsonable
    from exaslurm.rollout.wait import wait_over

    found, run_dir = started.rollout, started.run_dir
    if wait:
        found = wait_over(run_dir, found.candidate, timeout_s=timeout_s, talk=talk)
    if as_json:
        data = {**to_jsonable(found), "deployment": run_dir.deployment}
        result_json(data)
    else:
        result(f"{run_dir.deployment}: {found.sentence}")
    if not wait:
        talk(f"follow it: exaslurm status {run_dir.deployment} --watch")
        talk(f"take it back: exaslurm rollback {run_dir.deployment}")
        return ExitCode.OK
    as_asked = "undone" if started.undone else "done"
    return ExitCode.OK if found.state == as_asked else ExitCode.NOT_READY


@verb("history", short_help="Who did what to a deployment, when, and what came of it.")
@deployment_argument
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="The last N entries only.")
@json_option
@deployment_site_option
def history_command(deployment: str, last: int | None, as_json: bool, site: str | None) -> None:
    """Show what was done to DEPLOYMENT: submits, stops, roll-outs with their figures, and every
    job that the supervisor started or ended, oldest first."""
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.cli.history_text import history_text
    from exaslurm.core.codec import to_jsonable
    from exaslurm.status.history import read_history

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    entries = read_history(run_dir)[-(last or 0) :]
    if as_json:
        result_json(
            {
                "schema": "exaslurm/history/1",
                "deployment": run_dir.deployment,
                "entries": to_jsonable(entries),
            }
        )
    else:
        result(history_text(entries))
