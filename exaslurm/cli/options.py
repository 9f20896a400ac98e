"""Options that change a spec from the command line, with Slurm's short names where they mean
the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from exaslurm.api.source import SpecSource


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says about the spec. ``values`` are top-level keys of it."""

    site: str | None
    values: Mapping[str, str]

    def source(self, spec: str) -> SpecSource:
        """The spec file with these values in place of its own."""
        from exaslurm.api.source import SpecSource

        return SpecSource.of(Path(spec)).with_values(self.values)


_OPTIONS = (
    (("-A", "--account"), "account", "Account to charge."),
    (("-p", "--partition"), "partition", "Partition of the worker nodes."),
    (("-q", "--qos"), "qos", "Quality of service."),
    (("-t", "--time"), "time_limit", "Time limit of each job."),
    (("--reservation",), "reservation", "Reservation to run in."),
)


def override_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the verb gets them as one ``overrides`` argument."""

    @functools.wraps(function)
    def wrapped(*args: Any, site: str | None, **kwargs: Any) -> Any:
        values = {key: kwargs.pop(key) for _, key, _ in _OPTIONS}
        chosen = {key: value for key, value in values.items() if value is not None}
        return function(*args, overrides=Overrides(site, chosen), **kwargs)

    decorated: Callable[..., Any] = wrapped
    for names, key, text in reversed(_OPTIONS):
        decorated = click.option(
            *names, key, metavar=key.upper(), help=f"{text} Overrides the spec's {key}."
        )(decorated)
    return click.option(
        "--site",
        metavar="NAME",
        envvar="EXASLURM_SITE",
        help="Site config to use. Overrides the spec's site.",
    )(decorated)
