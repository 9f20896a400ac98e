"""``exaslurm key``: the keys of a deployment's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exaslurm.cli.output import result, result_json, table, talk
from exaslurm.cli.verb import (
    NearestGroup,
    deployment_argument,
    deployment_site_option,
    json_option,
    verb,
)

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:  # it takes no type argument before click 8.5
    _FloatType = click.ParamType


class DurationType(_FloatType):
    """``90``, ``90s``, ``30m``, ``12h``, ``7d``: seconds as a float."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_S else (text, "s")
        try:
            seconds = float(number) * _UNITS_S[unit]
        except ValueError:
            self.fail(f"{text!r} is not a time such as 90s, 30m, 12h or 7d", param, ctx)
        if not seconds > 0:
            self.fail("the time must be above 0", param, ctx)
        return seconds


@click.group("key", cls=NearestGroup, short_help="Add, list and remove client keys.")
def key_command() -> None:
    """Keys that clients show to the router (Authorization: Bearer KEY)."""


@verb("add", short_help="Make a key and print it, once.")
@deployment_argument
@click.argument("name", required=False)
@click.option(
    "--expires",
    metavar="TIME",
    type=DurationType(),
    help="Life of the key: 90s, 30m, 12h, 7d. Default: no end.",
)
@click.option("--model", "models", metavar="NAME", multiple=True, help="Only for this model.")
@json_option
@deployment_site_option
def add_command(
    deployment: str,
    name: str | None,
    expires: float | None,
    models: tuple[str, ...],
    as_json: bool,
    site: str | None,
) -> None:
    """Make a key for NAME (default: you) and print it. It is stored hashed and not shown again.

    \b
    Example:
        export OPENAI_API_KEY=$(exaslurm key add hello alice)
    """
    import os

    from exaslurm.api.keys import make_key
    from exaslurm.api.locate import find_run_dir
    from exaslurm.util.user import user_and_home

    owner = name or user_and_home(os.environ)[0]
    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    key = make_key(run_dir, owner, expires_s=expires, models=models)
    if as_json:
        result_json({"schema": "exaslurm/key/1", "name": owner, "key": key})
    else:
        result(key)
        talk(f"key {owner!r} of {run_dir.deployment}: keep it, it is not shown again")


@verb("list", short_help="Names, ages and limits of the keys.")
@deployment_argument
@json_option
@deployment_site_option
def list_command(deployment: str, as_json: bool, site: str | None) -> None:
    """List DEPLOYMENT's keys: never the keys themselves, only whose they are."""
    import os
    import time

    from exaslurm.api.locate import find_run_dir
    from exaslurm.core.codec import to_jsonable
    from exaslurm.keys.clients import list_keys

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    keys = list_keys(run_dir)
    if as_json:
        result_json({"schema": "exaslurm/keys/1", "keys": to_jsonable(keys)})
        return
    now_s = time.time()
    rows = [
        [
            key.name,
            _day(key.created_s),
            "never"
            if key.expires_at_s is None
            else ("expired " if key.is_expired(now_s) else "") + _day(key.expires_at_s),
            ", ".join(key.models) or "all",
        ]
        for key in keys
    ]
    result(table(["NAME", "MADE", "EXPIRES", "MODELS"], rows))


@verb("remove", short_help="Remove a key: routers refuse it at once.")
@deployment_argument
@click.argument("name")
@deployment_site_option
def remove_command(deployment: str, name: str, site: str | None) -> None:
    """Remove the key of NAME."""
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.keys.clients import remove_key

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    remove_key(run_dir, name)
    talk(f"key {name!r} of {run_dir.deployment} removed")


def _day(seconds: float) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


for _command in (add_command, list_command, remove_command):
    key_command.add_command(_command)
