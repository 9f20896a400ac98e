"""``exaslurm key``: the keys of a deployment's clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from exaslurm.cli.output import result, result_json, table, talk
from exaslurm.cli.verb import (
    NearestGroup,
    deployment_argument,
    deployment_site_option,
    json_option,
    verb,
)

if TYPE_CHECKING:
    from exaslurm.keys.clients import KeyInfo, KeyOptions

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:  # it takes no type argument before click 8.5
    _FloatType = click.ParamType


class DurationType(_FloatType):
    """``90``, ``90s``, ``30m``, ``12h``, ``7d``: seconds as a float; ``never``: infinity."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        if text == "never":
            return math.inf
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_S else (text, "s")
        try:
            seconds = float(number) * _UNITS_S[unit]
        except ValueError:
            self.fail(f"{text!r} is not a time such as 90s, 30m, 12h or 7d, nor never", param, ctx)
        if not 0 < seconds < math.inf:
            self.fail("the time must be above 0", param, ctx)
        return seconds


_LIMIT = click.IntRange(min=0)
_OPTIONS = (
    click.option(
        "--expires",
        metavar="TIME",
        type=DurationType(),
        help="Life of the key from now: 90s, 30m, 12h, 7d, or never.",
    ),
    click.option(
        "--model",
        "--models",
        "models",
        metavar="NAMES",
        multiple=True,
        help="Only for these models or shards: NAME,NAME,... or given several times; '' for all.",
    ),
    click.option(
        "--requests-per-min", metavar="N", type=_LIMIT, help="Requests a minute; 0: no limit."
    ),
    click.option(
        "--tokens-per-min",
        metavar="N",
        type=_LIMIT,
        help="Tokens a minute, prompts and answers together; 0: no limit.",
    ),
    click.option(
        "--concurrency", metavar="N", type=_LIMIT, help="Requests at a time; 0: no limit."
    ),
    click.option(
        "--priority",
        metavar="N",
        type=int,
        help="Where requests have to wait, the higher number goes first. New keys have 0.",
    ),
)


def key_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what can be said of a key; the verb gets what was given as one ``options``."""

    @functools.wraps(function)
    def wrapped(*args: Any, expires: float | None, models: tuple[str, ...], **kwargs: Any) -> Any:
        options: KeyOptions = {}
        if expires is not None:
            options["expires_s"] = None if math.isinf(expires) else expires
        if models:
            options["models"] = tuple(
                name.strip() for text in models for name in text.split(",") if name.strip()
            )
        for limit in ("requests_per_min", "tokens_per_min", "concurrency", "priority"):
            value = kwargs.pop(limit)
            if value is not None:
                options[limit] = value
        return function(*args, options=options, **kwargs)

    decorated: Callable[..., Any] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


@click.group("key", cls=NearestGroup, short_help="Add, change, list and remove client keys.")
def key_command() -> None:
    """Keys that clients show to the router (Authorization: Bearer KEY)."""


@verb("add", short_help="Make a key and print it, once.")
@deployment_argument
@click.argument("name", required=False)
@key_options
@json_option
@deployment_site_option
def add_command(
    deployment: str,
    name: str | None,
    options: KeyOptions,
    as_json: bool,
    site: str | None,
) -> None:
    """Make a key for NAME (default: you) and print it. It is stored hashed and not shown again.

    Without options it has no end and no limit, and is for every model.

    \b
    Examples:
        export OPENAI_API_KEY=$(exaslurm key add hello alice)
        exaslurm key add hello class --expires 30d --requests-per-min 60 --concurrency 4
    """
    import os

    from exaslurm.api.keys import make_key
    from exaslurm.api.locate import find_run_dir
    from exaslurm.util.user import user_and_home

    owner = name or user_and_home(os.environ)[0]
    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    key = make_key(run_dir, owner, **options)
    if as_json:
        result_json({"schema": "exaslurm/key/1", "name": owner, "key": key})
    else:
        result(key)
        talk(f"key {owner!r} of {run_dir.deployment}: keep it, it is not shown again")


@verb("set", short_help="Change what a key may do.")
@deployment_argument
@click.argument("name")
@key_options
@deployment_site_option
def set_command(deployment: str, name: str, options: KeyOptions, site: str | None) -> None:
    """Change what the key of NAME may do: what is given here; the rest, and the key, stay.

    \b
    Example:
        exaslurm key set hello alice --requests-per-min 600 --priority 10
    """
    import os

    from exaslurm.api.keys import alter_key
    from exaslurm.api.locate import find_run_dir

    if not options:
        raise click.UsageError("nothing to change: give at least one option")
    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    alter_key(run_dir, name, **options)
    talk(f"key {name!r} of {run_dir.deployment} changed")


@verb("list", short_help="Names, ages and limits of the keys.")
@deployment_argument
@json_option
@deployment_site_option
def list_command(deployment: str, as_json: bool, site: str | None) -> None:
    """List DEPLOYMENT's keys: never the keys themselves, only whose they are and what they may."""
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
    heads = ["NAME", "MADE", "EXPIRES", "REQUESTS/MIN", "TOKENS/MIN", "AT A TIME", "PRIORITY"]
    result(table([*heads, "MODELS"], [_row(key, now_s) for key in keys]))


def _row(key: KeyInfo, now_s: float) -> list[str]:
    expires = "never"
    if key.expires_at_s is not None:
        expires = ("expired " if key.is_expired(now_s) else "") + _day(key.expires_at_s)
    limits = (key.requests_per_min, key.tokens_per_min, key.concurrency)
    return [
        key.name,
        _day(key.created_s),
        expires,
        *(str(limit) if limit else "-" for limit in limits),
        str(key.priority),
        ", ".join(key.models) or "all",
    ]


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


for _command in (add_command, set_command, list_command, remove_command):
    key_command.add_command(_command)
