"""Figures of a load: seconds of success, silence, classes."""

from __future__ import annotations

import pytest

from exaslurm.chaos.asked import Asked
from exaslurm.chaos.figures import figures, longest_gap, time_to_success

ANSWER = b'{"choices": [1]}'


def steady(begin: float, end: float, per_s: int, *, good: bool = True) -> list[tuple[float, bool]]:
    count = round((end - begin) * per_s)
    return [(begin + index / per_s, good) for index in range(count)]


def test_nothing_happened() -> None:
    assert time_to_success(steady(-5, 5, 50), [], 0.0) == 0.0


def test_one_failure_among_few_ends_the_bad_time() -> None:
    ends = [*steady(-2, 5, 10), (0.42, False)]
    assert time_to_success(ends, [], 0.0) == pytest.approx(0.42, abs=0.09)


def test_one_in_a_hundred_is_within_the_share_and_two_are_not() -> None:
    many = steady(-2, 5, 100)
    assert time_to_success([*many, (2.005, False)], [], 0.0) == 0.0
    worse = time_to_success([*many, (2.005, False), (2.015, False)], [], 0.0)
    assert worse == pytest.approx(2.01, abs=0.02)


def test_failures_before_the_fault_do_not_count() -> None:
    assert time_to_success([*steady(-2, 5, 10), (-0.5, False)], [], 0.0) == 0.0
    # 100: when the fault was, on the clock of the load.
    ends = [(100 + end, good) for end, good in [*steady(0, 5, 10), (0.42, False)]]
    assert time_to_success(ends, [], 100.0) == pytest.approx(0.42, abs=0.09)


def test_a_relapse_counts_from_the_fault() -> None:
    ends = [*steady(0, 9, 20), (0.3, False), (6.01, False)]
    assert time_to_success(ends, [], 0.0) == pytest.approx(6.01, abs=0.06)


def test_silence_is_no_success() -> None:
    ends = [*steady(0, 1, 20), *steady(4, 8, 20)]
    assert time_to_success(ends, [(0.95, 4.0)], 0.0) == pytest.approx(4.0, abs=0.1)
    # Without anybody who waits (so without silence) there is nothing wrong.
    assert time_to_success(ends, [], 0.0) == 0.0


def test_what_never_comes_back_is_said_so() -> None:
    assert time_to_success([*steady(-2, 0.2, 20), *steady(0.2, 4, 20, good=False)], [], 0.0) is None
    assert time_to_success([], [], 0.0) is None


def test_the_longest_gap_begins_with_the_fault() -> None:
    assert longest_gap([(-3.0, 0.5), (2.0, 2.4)], 0.0) == 0.5
    assert longest_gap([(-3.0, -1.0)], 0.0) == 0.0


def test_how_long_those_waited_who_had_asked_before() -> None:
    asked = [
        Asked(stream=False, asked_s=9.0, ended_s=12.5, status=200, tail=ANSWER),
        Asked(stream=False, asked_s=10.1, ended_s=17.0, status=200, tail=ANSWER),
        Asked(stream=True, asked_s=9.0, ended_s=15.0, status=200, tail=b""),
        Asked(stream=False, asked_s=8.0, ended_s=9.0, status=200, tail=ANSWER),
    ]
    assert figures(asked, [], 10.0).waited_s == 2.5


def test_the_sum() -> None:
    def asked(end: float, **more: object) -> Asked:
        given = {"stream": False, "asked_s": end - 0.2, "ended_s": end, "status": 200}
        return Asked(**{**given, "tail": ANSWER, "replica": "r1", **more})  # type: ignore[arg-type]

    found = figures(
        [
            asked(9.0, replica="r0"),
            asked(10.5),
            asked(10.6, status=0, lost=True, tail=b"", said="reset"),
            asked(10.7, status=0, lost=True, tail=b"", reconnected=True),
            asked(11.0, reconnected=True),
        ],
        [(10.0, 10.45)],
        10.0,
        router_died=True,
        retried=3,
    )
    assert (found.sent, found.ok, found.retried, found.reconnected) == (5, 3, 3, 2)
    assert found.failed == {"not_begun": 0, "begun_event": 0, "begun_cut": 0, "router_lost": 2}
    assert found.longest_gap_s == 0.45
    assert found.waited_s == 0.0
    assert found.replicas == {"r1": 4}
    assert "reset" in found.samples[0]
