"""Reads records of an audit log, the newest first, without checking them."""

from __future__ import annotations

import calendar
import contextlib
import heapq
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exaslurm.router.audit_chain import chains, opened_at, record_of, unseal
from exaslurm.util.files import state_error

Record = dict[str, Any]


def read(directory: Path) -> Iterator[Record]:
    """Every record in a directory, chain after chain, in order. StateError if it cannot be
    read."""
    try:
        for chain in chains(directory).values():
            for path in chain.files:
                yield from _records(path)
    except OSError as error:
        raise state_error("read", directory, error) from error


def newest(
    directory: Path, count: int, wanted: Callable[[Record], bool], *, since_s: float = 0.0
) -> list[Record]:
    """The last ``count`` records that are ``wanted``, over all chains, in the order of their
    times; none from before ``since_s`` (Unix seconds). StateError if they cannot be read."""
    found: list[Record] = []
    try:
        for chain in chains(directory).values():
            left = count
            for path in reversed(chain.files):
                fits = [record for record in _records(path) if _is_since(record, since_s)]
                chosen = heapq.nlargest(count, filter(wanted, fits), key=_time_ms)
                found += chosen
                left -= len(chosen)
                # A request is recorded when it ends: files from before hold older ones only.
                if left <= 0 or _opened_s(path) < since_s:
                    break
    except OSError as error:
        raise state_error("read", directory, error) from error
    return sorted(heapq.nlargest(count, found, key=_time_ms), key=_time_ms)


def _records(path: Path) -> Iterator[Record]:
    # A router may remove its oldest file meanwhile.
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            parts = unseal(line)
            record = record_of(parts[0]) if parts else None
            if record is not None:
                yield record


def _time_ms(record: Record) -> float:
    time_ms = record.get("time_ms")
    return time_ms if isinstance(time_ms, int | float) else 0


def _is_since(record: Record, since_s: float) -> bool:
    return _time_ms(record) >= since_s * 1000


def _opened_s(path: Path) -> float:
    stamp = opened_at(path)[: len("20260101-000000")]
    return calendar.timegm(time.strptime(stamp, "%Y%m%d-%H%M%S"))
