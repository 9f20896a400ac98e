"""Changing one value in the text of a YAML file, and nothing else in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key of the outermost mapping, and where its value stands in the text."""

    key: str
    start: int
    end: int


def with_value(text: str, key: str, value: str) -> str:
    """``text`` with the top-level ``key`` set to ``value`` (YAML on one line).

    The value is replaced where the key stands, in block or in flow style; a missing key comes
    last (first in ``{...}``), so that the lines of everything else stay what they are. What is
    no mapping, or no YAML, stays as it is: reading it says what is wrong.
    """
    try:
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return text
    if len(events) < 3 or not isinstance(events[2], yaml.MappingStartEvent):
        return text
    root = events[2]
    entries = list(_entries(events[3:]))
    for entry in entries:
        if entry.key == key:
            gap = "" if text[entry.start - 1 : entry.start].isspace() else " "
            rest = _line_end(text, entry.start, entry.end)
            return f"{text[: entry.start]}{gap}{value}{rest}{text[entry.end :]}"
    if root.flow_style:
        start = _at(root.start_mark).index + 1
        comma = ", " if entries else ""
        return f"{text[:start]}{key}: {value}{comma}{text[start:]}"
    end = entries[-1].end
    if text[end - 1] != "\n":  # a comment may follow on the line
        newline = text.find("\n", end)
        end = len(text) if newline < 0 else newline + 1
    head = text[:end] if text[end - 1] == "\n" else text[:end] + "\n"
    return f"{head}{' ' * _at(root.start_mark).column}{key}: {value}\n{text[end:]}"


def _at(mark: Any) -> yaml.Mark:
    """Where an event begins or ends: the parser always says so, its types do not."""
    assert isinstance(mark, yaml.Mark)
    return mark


def _line_end(text: str, start: int, end: int) -> str:
    """The line break that a block value (a list, a ``|`` text) ends with, which must stay."""
    return "\n" if text[start:end].endswith("\n") else ""


def _entries(events: list[yaml.Event]) -> Iterator[_Entry]:
    """The entries of the mapping whose events these are (after its start)."""
    depth = 0
    key: str | None = None
    is_key = True
    start = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            if depth < 0:
                return
        elif depth == 0:
            start = _at(event.start_mark).index
            if is_key:
                key = event.value if isinstance(event, yaml.ScalarEvent) else None
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        if depth == 0:
            if not is_key and key is not None:
                yield _Entry(key, start, _at(event.end_mark).index)
            is_key = not is_key
