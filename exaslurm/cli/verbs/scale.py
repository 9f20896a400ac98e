"""``exaslurm scale``: how many replicas of a shard there shall be."""

from __future__ import annotations

import click

from exaslurm.cli.output import result, result_json
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb


@verb("scale", short_help="Say how many replicas of a shard there shall be.")
@deployment_argument
@click.argument("shards", metavar="[MODEL:SHARD=N]...", nargs=-1)
@click.option(
    "--auto",
    metavar="MODEL:SHARD",
    multiple=True,
    help="Scale this shard automatically again, as the spec says; may be repeated.",
)
@json_option
@deployment_site_option
def scale_command(
    deployment: str,
    shards: tuple[str, ...],
    auto: tuple[str, ...],
    as_json: bool,
    site: str | None,
) -> None:
    """Have N replicas of each shard of DEPLOYMENT that is named, in all cells together; without
    any, show how many are wanted.

    More are started on the nodes that there are, then in more cells; those that are too many finish
    what they have begun, and cells that carry none are ended. A number that a person has said is
    not changed automatically any more, until --auto. (A supervisor must run: 'exaslurm gateway' has
    one.)

    \b
    Examples:
        exaslurm scale hello chat:base=8
        exaslurm scale hello chat:code=0 embed:base=2
        exaslurm scale hello --auto chat:base
    """
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.api.scale import scale, wanted_now

    environ = dict(os.environ)
    run_dir = find_run_dir(deployment, environ, site=site)
    if shards or auto:
        scale(run_dir, dict(map(_pair, shards)), auto=auto, environ=environ)
    found = wanted_now(run_dir)
    if as_json:
        result_json(
            {
                "schema": "exaslurm/scale/1",
                "deployment": run_dir.deployment,
                "shards": [
                    {
                        "shard": item.name,
                        "wanted": item.wanted,
                        "least": item.least,
                        "most": item.most,
                        "automatic": item.automatic,
                    }
                    for item in found
                ],
            }
        )
        return
    for item in found:
        how = "automatic" if item.automatic else "fixed"
        result(f"{item.name}: {item.wanted} wanted ({item.least} to {item.most}, {how})")


def _pair(text: str) -> tuple[str, int]:
    name, equals, count = text.rpartition("=")
    if not equals or not name or not count.isdecimal():
        raise click.UsageError(f"{text!r}: say MODEL:SHARD=N, such as chat:base=3")
    return name, int(count)
