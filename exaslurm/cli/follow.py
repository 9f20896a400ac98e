"""Showing log files as ``tail`` and ``tail -f`` do."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from exaslurm.status.logs import LogFile, tail
from exaslurm.util.files import state_error

POLL_S = 0.5


@dataclass(slots=True)
class _Followed:
    log: LogFile
    position: int


def show(logs: Sequence[LogFile], *, lines: int, follow: bool) -> None:
    """Print the last lines of each log, then (``follow``) what is added until interrupted."""
    headings = len(logs) > 1
    for number, log in enumerate(logs):
        if headings:
            click.echo(f"{chr(10) if number else ''}==> {log.label} <==")
        for line in _tail(log.path, lines):
            click.echo(line)
    if not follow:
        return
    followed = [_Followed(log, _size(log.path)) for log in logs]
    last = logs[-1]
    while True:
        sys.stdout.flush()
        time.sleep(POLL_S)
        for item in followed:
            added = _added(item)
            if not added:
                continue
            if headings and item.log is not last:
                click.echo(f"\n==> {item.log.label} <==")
                last = item.log
            click.echo(added, nl=False)


def _tail(path: Path, lines: int) -> list[str]:
    try:
        return tail(path, lines)
    except OSError as error:
        raise state_error("read", path, error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _added(item: _Followed) -> str:
    """What came since the last look; a file that shrank was begun anew."""
    size = _size(item.log.path)
    if size < item.position:
        item.position = 0
    if size == item.position:
        return ""
    try:
        with item.log.path.open("rb") as file:
            file.seek(item.position)
            data = file.read(size - item.position)
    except OSError:
        return ""
    item.position += len(data)
    return data.decode("utf-8", errors="replace")
