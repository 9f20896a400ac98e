"""What goes to stdout (the result) and to stderr (the talk)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

STYLES: dict[str, dict[str, Any]] = {
    "good": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red"},
    "dim": {"dim": True},
    "bold": {"bold": True},
}


def prepare_streams() -> None:
    """Make stdin, stdout and stderr usable, whatever the caller has done to them.

    A closed one would be taken by the next file that is opened, and what is meant for the terminal
    would be written into it. Text that the terminal's encoding lacks is shown escaped.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # the lowest free number is taken: one of the three
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115


def give_up(stream: Any) -> None:
    """Nobody reads the stream any more, or its disk is full: what it still holds goes nowhere, so
    that Python does not complain once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def use_colour(stream: Any) -> bool:
    """Colour only on a terminal, and never with NO_COLOR (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(stream.isatty())


def paint(text: str, style: str, stream: Any = None) -> str:
    """``text`` in one of STYLES where the stream takes colour."""
    return click.style(text, **STYLES[style]) if use_colour(stream or sys.stdout) else text


def talk(message: str) -> None:
    """A line for the person at the terminal (stderr). What is being done goes on even if nobody
    can be told."""
    try:
        click.echo(message, err=True, color=use_colour(sys.stderr))
    except OSError:
        give_up(sys.stderr)


def result(text: str) -> None:
    """A line of the result (stdout)."""
    click.echo(text, color=use_colour(sys.stdout))


def result_json(data: Any) -> None:
    """The result as JSON. ``data`` carries a versioned ``schema`` key."""
    click.echo(json.dumps(data, indent=2, sort_keys=False, allow_nan=False))


def print_error(message: str, *, remedy: str | None = None) -> None:
    """``exaslurm: error: <message>`` and the remedy, on stderr."""
    first, *rest = message.splitlines() or [""]
    lines = [f"exaslurm: {paint('error', 'bad', sys.stderr)}: {first}"]
    lines += [f"  {line}" for line in rest]
    if remedy:
        lines.append(f"  remedy: {remedy}")
    talk("\n".join(lines))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Columns padded to their widest cell; colour codes do not count."""
    everything = [list(header), *[list(row) for row in rows]]
    widths = [
        max(len(click.unstyle(row[column])) for row in everything) for column in range(len(header))
    ]
    lines = []
    for number, row in enumerate(everything):
        cells = [
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(row, widths, strict=True)
        ]
        line = indent + "  ".join(cells).rstrip()
        lines.append(paint(line, "bold") if number == 0 else line)
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    """A duration for a table: ``0.4 s``, ``12 s``, ``03:07``."""
    if value is None:
        return "-"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 99.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
