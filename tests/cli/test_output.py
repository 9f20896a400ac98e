"""Tables, durations, colour."""

from __future__ import annotations

import io

import pytest

from exaslurm.cli.output import paint, seconds, table, use_colour
from exaslurm.core.numbers import ranges


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (99.6, "01:40"),
        (187, "03:07"),
        (3600, "1:00:00"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_columns_line_up() -> None:
    assert table(["A", "LONG"], [["xyz", "1"], ["", "22"]]) == "A    LONG\nxyz  1\n     22"


def test_colour_codes_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    painted = paint("ok", "good", Terminal())
    assert painted != "ok"
    assert table(["A", "B"], [[painted, "1"]]).splitlines()[1] == f"{painted}  1"


@pytest.mark.parametrize(
    ("variables", "stream", "expected"),
    [
        ({}, Terminal(), True),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"TERM": "dumb"}, Terminal(), False),
        ({}, io.StringIO(), False),
    ],
)
def test_when_there_is_colour(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], stream: io.StringIO, expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert use_colour(stream) is expected


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 3, 8), "0-3,8"), ((8, 1, 0), "0-1,8")]
)
def test_core_lists_are_folded(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text
