"""``exaslurm chaos``: break something on purpose, under load, and see what clients notice."""

from __future__ import annotations

import click

from exaslurm.chaos.kinds import BY_NAME, KINDS
from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import Verb, deployment_argument, deployment_site_option
from exaslurm.errors import ExitCode, UserError

_NUMBER = click.FloatRange(min=0.0)


class _Chaos(Verb):
    """Its help ends with the faults that there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Faults"):
            formatter.write_dl([(kind.name, kind.does) for kind in KINDS])
        super().format_epilog(ctx, formatter)


@click.command("chaos", cls=_Chaos, short_help="Break something on purpose, under load.")
@deployment_argument
@click.argument("fault", metavar="[FAULT]", required=False)
@click.option("--undo", is_flag=True, help="Mend what earlier runs have left broken; no FAULT.")
@click.option("--this-is-not-a-lab", "not_a_lab", is_flag=True, help="Do it on any site.")
@click.option("--replica", metavar="ID", help="The replica to hit. Default: one by --seed.")
@click.option("--node", metavar="NODE[,NODE]", help="The node, or nodes at once, to hit.")
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many nodes at once, where they are not named.",
)
@click.option("--cell", metavar="CELL", help="The cell to hit.")
@click.option(
    "--seed", metavar="N", type=int, default=0, show_default=True, help="Chooses what is not named."
)
@click.option(
    "--for",
    "held_s",
    metavar="SECS",
    type=_NUMBER,
    default=None,
    help="Mend it after this time. Default: 20 s, or when all is well again.",
)
@click.option(
    "--before",
    "before_s",
    metavar="SECS",
    type=_NUMBER,
    default=3.0,
    show_default=True,
    help="Load before the fault.",
)
@click.option(
    "--after",
    "after_s",
    metavar="SECS",
    type=_NUMBER,
    default=3.0,
    show_default=True,
    help="Load after all is well again.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECS",
    type=_NUMBER,
    default=300.0,
    show_default=True,
    help="Give up waiting for full strength.",
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Clients, each with one request at a time.",
)
@click.option(
    "--rate",
    "rate_per_s",
    metavar="R",
    type=_NUMBER,
    default=0.0,
    help="Requests a second, all clients together, at most. Default: no limit.",
)
@click.option(
    "--streams",
    "stream_share",
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0),
    default=0.5,
    show_default=True,
    help="Share of requests that want a stream.",
)
@click.option("--model", metavar="NAME", default="", help="Model to ask. Default: the first one.")
@click.option(
    "--prompt-words",
    metavar="N",
    type=click.IntRange(4, 100000),
    default=8,
    show_default=True,
    help="About how long a prompt is.",
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="How long an answer is.",
)
@click.option(
    "--delay-ms",
    metavar="MS",
    type=_NUMBER,
    default=100.0,
    show_default=True,
    help="slow-link: delay of answers.",
)
@click.option(
    "--rate-mbit",
    metavar="MBIT",
    type=_NUMBER,
    default=0.0,
    help="slow-link: what leaves the node, in Mbit/s. Default: no limit.",
)
@click.option(
    "--skew-s",
    metavar="SECS",
    type=float,
    default=90.0,
    show_default=True,
    help="skew-clock: how far the clock is off.",
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    default=None,
    help="fill-disk: a directory of the node. Default: the site's chaos.disk.",
)
@click.option(
    "--most-gib",
    metavar="GIB",
    type=_NUMBER,
    default=4.0,
    show_default=True,
    help="fill-disk: refuse to take more.",
)
@click.option(
    "--grace-s",
    metavar="SECS",
    type=_NUMBER,
    default=30.0,
    show_default=True,
    help="preempt: from the warning to the end.",
)
@click.option(
    "--in-s",
    metavar="SECS",
    type=_NUMBER,
    default=120.0,
    show_default=True,
    help="reach-wall-time: from now to the limit.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON (versioned by 'schema')."
)
@deployment_site_option
def chaos_command(
    deployment: str,
    fault: str | None,
    undo: bool,
    not_a_lab: bool,
    replica: str | None,
    node: str | None,
    nodes: int,
    cell: str | None,
    seed: int,
    held_s: float | None,
    before_s: float,
    after_s: float,
    timeout_s: float,
    concurrency: int,
    rate_per_s: float,
    stream_share: float,
    model: str,
    prompt_words: int,
    max_tokens: int,
    delay_ms: float,
    rate_mbit: float,
    skew_s: float,
    directory: str | None,
    most_gib: float,
    grace_s: float,
    in_s: float,
    as_json: bool,
    site: str | None,
) -> ExitCode:
    """Break something of DEPLOYMENT on purpose while clients ask it, mend it, and print what the
    clients noticed.

    Run it where the router can be reached. What is broken is mended at the end, also after Ctrl-C;
    should this process be killed, --undo does it. Exit code 0 if nothing failed that had not begun
    and everything is as strong as before, else 6.
    """
    import asyncio
    import json
    import os

    from exaslurm.api.chaos import Order, mend_chaos, run_chaos
    from exaslurm.api.locate import find_run_dir
    from exaslurm.chaos.faults import Options
    from exaslurm.chaos.load import LoadPlan
    from exaslurm.chaos.run import Timing
    from exaslurm.chaos.victims import Wanted
    from exaslurm.cli.chaos_text import report_text
    from exaslurm.cli.openai_http import borrowed_key
    from exaslurm.core.codec import to_jsonable

    environ = dict(os.environ)
    run_dir = find_run_dir(deployment, environ, site=site)
    if undo:
        if fault is not None:
            raise click.UsageError("--undo takes no FAULT")
        mended, left = mend_chaos(run_dir, environ)
        if as_json:
            result_json({"schema": "exaslurm/chaos-undo/1", "mended": mended, "left": left})
        else:
            lines = [*(f"mended: {text}" for text in mended), *(f"left: {text}" for text in left)]
            result("\n".join(lines) or "nothing is left to mend")
        return ExitCode.NOT_READY if left else ExitCode.OK
    order = Order(
        fault=_known(fault),
        wanted=Wanted(replica=replica, node=node, cell=cell, count=nodes),
        options=Options(
            delay_ms=delay_ms,
            rate_mbit=rate_mbit,
            skew_s=skew_s,
            directory=directory,
            most_gib=most_gib,
            grace_s=grace_s,
            in_s=in_s,
        ),
        timing=Timing(before_s=before_s, after_s=after_s, timeout_s=timeout_s, held_s=held_s),
        load=LoadPlan(
            model=model,
            concurrency=concurrency,
            rate_per_s=rate_per_s,
            stream_share=stream_share,
            prompt_words=prompt_words,
            max_tokens=max_tokens,
        ),
        seed=seed,
        not_a_lab=not_a_lab,
    )
    with borrowed_key(run_dir, environ.get("EXASLURM_API_KEY")) as key:
        report = asyncio.run(run_chaos(run_dir, order, environ, key, talk))
    if as_json:
        # One line, whatever reads it.
        click.echo(json.dumps(to_jsonable(report), allow_nan=False))
    else:
        result(report_text(report))
    return ExitCode.OK if report.is_well else ExitCode.NOT_READY


def _known(fault: str | None) -> str:
    if fault is None:
        raise click.UsageError("which FAULT? see --help")
    if fault not in BY_NAME:
        import difflib

        near = difflib.get_close_matches(fault, list(BY_NAME), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "they are: " + ", ".join(BY_NAME)
        raise UserError(f"unknown fault {fault!r}", remedy=hint)
    return fault
