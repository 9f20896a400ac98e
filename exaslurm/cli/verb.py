"""What every verb has: --debug, nearest option names, and the options that many share."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Verb(click.Command):
    """A verb: takes ``--debug`` and answers an unknown option with the nearest known one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors."
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        self._name_variables(ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [option for param in self.params for option in param.opts]
            near = difflib.get_close_matches(error.option_name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"unknown option {error.option_name}{hint}", ctx) from None

    def _name_variables(self, ctx: click.Context) -> None:
        """Each option's variable has the option's own name, not that of our argument:
        ``--time`` of submit is ``EXASLURM_SUBMIT_TIME``."""
        for param in self.params:
            if isinstance(param, click.Option) and param.envvar is None and param.expose_value:
                longest = max(param.opts, key=len).lstrip("-")
                param.envvar = f"{ctx.auto_envvar_prefix}_{longest.replace('-', '_')}".upper()


class NearestGroup(click.Group):
    """A group of verbs that answers an unknown one with the nearest known one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"unknown verb {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function a verb of that name."""

    def decorate(function: Callable[..., Any]) -> Verb:
        return click.command(name, cls=Verb, **attributes)(function)

    return decorate


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON (versioned by 'schema')."
)

site_option = click.option(
    "--site",
    metavar="NAME",
    envvar="EXASLURM_SITE",
    help="The site config to use instead of the one that the spec names.",
)

spec_argument = click.argument("spec", metavar="SPEC", type=click.Path())

deployment_argument = click.argument("deployment", metavar="DEPLOYMENT")


def deployment_site_option(function: F) -> F:
    """``--site`` for verbs that look a deployment up."""
    return click.option(
        "--site",
        metavar="NAME",
        envvar="EXASLURM_SITE",
        help="Look for the deployment in the state directory of this site only.",
    )(function)
