from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from exaslurm.core.canary import Canary
from exaslurm.core.rollout import Rollout, RolloutPolicy
from exaslurm.rollout.machine import Seen, advance, kept_cells, lanes, shares, undone_for

POLICY = RolloutPolicy(hold_s=60.0, min_requests=100)
NAMES = {"chat": ("v1", "v2")}


def begun(**changes: Any) -> Rollout:
    given = {"stable": 1, "candidate": 2, "state": "rising", "policy": POLICY, "names": NAMES}
    return Rollout(**{**given, **changes})  # type: ignore[arg-type]


def cells(count: int) -> tuple[str, ...]:
    return tuple(f"c{number:03d}" for number in range(count))


class Walk:
    """A rollout whose cells come up at once, and whose old jobs end at once."""

    def __init__(self, old: int, new: int, *, requests: int = 1000, **changes: Any) -> None:
        self.requests = requests
        every: dict[str, tuple[int, ...]] = dict.fromkeys(cells(max(old, new)), ())
        self.rollout = begun(
            stable_cells=cells(old), candidate_cells=cells(new), lanes=every, **changes
        )
        self.rollout = replace(self.rollout, lanes=lanes(self.rollout))
        self.now_s = 0.0
        self.seen: list[tuple[float, int, int]] = []

    def step(self, seconds: float = 10.0, **seen: Any) -> Rollout:
        self.now_s += seconds
        wanted = self.rollout.lanes
        found = Seen(
            serving=frozenset(name for name, numbers in wanted.items() if 2 in numbers),
            stable_lives=any(1 in numbers for numbers in wanted.values()),
            candidate_lives=any(2 in numbers for numbers in wanted.values()),
            requests=self.requests,
        )
        self.rollout = advance(self.rollout, replace(found, **seen), self.now_s)
        return self.rollout

    def through(self) -> list[tuple[float, int, int]]:
        """Share, cells of the new and of the old generation, on the way to the end."""
        trace: list[tuple[float, int, int]] = []
        for _ in range(1000):
            self.step()
            numbers = list(self.rollout.lanes.values())
            here = (
                self.rollout.share_percent,
                sum(2 in each for each in numbers),
                sum(1 in each for each in numbers),
            )
            if not trace or trace[-1] != here:
                trace.append(here)
            if self.rollout.is_over:
                return trace
        raise AssertionError(trace)


def test_one_cell() -> None:
    walk = Walk(1, 1)
    assert walk.rollout.lanes == {"c000": (1, 2)}
    assert walk.through() == [(5, 1, 1), (25, 1, 1), (50, 1, 1), (100, 1, 1), (100, 1, 0)]
    assert walk.rollout.state == "done"
    assert walk.now_s >= 4 * POLICY.hold_s


@pytest.mark.parametrize(("old", "new"), [(2, 2), (4, 4), (16, 16), (4, 2), (2, 5), (3, 1)])
def test_never_more_than_one_cell_on_top_nor_too_few_to_carry(old: int, new: int) -> None:
    walk = Walk(old, new)
    trace = walk.through()
    assert trace[-1] == (100, new, 0)
    for share, there, kept in trace[:-1]:
        # In cells of its own size, what each version carries; one of the new may not serve yet.
        assert share / 100 <= there / new + 1e-9
        assert (100 - share) / 100 <= kept / old + 1e-9
        assert (there - 1) / new + kept / old <= 1 + 1 / old + 1e-9


def test_cells_go_over_in_order() -> None:
    walk = Walk(4, 4)
    seen = []
    while walk.rollout.state == "rising":
        if walk.rollout.lanes not in seen:
            seen.append(walk.rollout.lanes)
        walk.step()
    assert seen == [
        {"c000": (1, 2), "c001": (1,), "c002": (1,), "c003": (1,)},
        {"c000": (2,), "c001": (1, 2), "c002": (1,), "c003": (1,)},
        {"c000": (2,), "c001": (2,), "c002": (1, 2), "c003": (1,)},
        {"c000": (2,), "c001": (2,), "c002": (2,), "c003": (1, 2)},
    ]
    assert walk.rollout.lanes == dict.fromkeys(cells(4), (2,))


def test_more_room_for_both() -> None:
    policy = replace(POLICY, surge=4)
    walk = Walk(4, 4, policy=policy)
    assert (100.0, 4, 4) in walk.through()
    four = begun(policy=policy, cells=2, stable_cells=cells(4), candidate_cells=cells(4))
    assert kept_cells(four) == 4


@pytest.mark.parametrize("surge", [2, 3, 16, 99])
@pytest.mark.parametrize(("old", "new"), [(16, 16), (16, 4), (5, 12)])
def test_several_at_a_time(old: int, new: int, surge: int) -> None:
    walk = Walk(old, new, policy=replace(POLICY, surge=surge))
    trace = walk.through()
    assert trace[0][1] == 1  # the first one comes alone
    most = max(b - a for (_, a, _), (_, b, _) in pairwise(trace))
    assert 1 < most <= surge
    for share, there, kept in trace[:-1]:
        assert share / 100 <= there / new + 1e-9
        assert (100 - share) / 100 <= kept / old + 1e-9
        assert kept >= 1
        if old == new:
            assert there + kept <= old + surge


def test_it_waits_for_the_cell() -> None:
    walk = Walk(2, 2)
    assert walk.step(serving=frozenset()).share_percent == 0
    assert walk.step().share_percent == 5
    assert walk.rollout.since_s == 20.0


def test_few_requests_are_waited_for_as_long_again() -> None:
    walk = Walk(1, 1, requests=7)
    walk.step()
    walk.step(POLICY.hold_s + 1)
    assert walk.rollout.step == 0
    assert "fewer than 100 requests" in str(walk.rollout.note)
    walk.step(POLICY.hold_s)
    assert walk.rollout.step == 1
    assert "only 7 of 100" in str(walk.rollout.note)
    assert walk.step().note is None


@pytest.mark.parametrize("field", ["trouble", "worse"])
def test_stopped_and_taken_back(field: str) -> None:
    walk = Walk(4, 4)
    while walk.rollout.share_percent < 50:
        walk.step()
    over = walk.step(**{field: "it is bad"})
    assert (over.state, over.reason, over.share_percent) == ("undoing", "it is bad", 0)
    assert over.lanes == dict.fromkeys(cells(4), (1,))
    assert walk.step(candidate_lives=True).state == "undoing"
    assert walk.step().state == "undone"
    assert walk.step().state == "undone"


def test_cells_that_only_the_new_plan_has_go_again() -> None:
    walk = Walk(1, 3)
    while walk.rollout.cells < 3:
        walk.step()
    walk.step(worse="no")
    assert walk.rollout.lanes == {"c000": (1,), "c001": (), "c002": ()}


def test_trouble_after_the_last_step_is_the_supervisors() -> None:
    walk = Walk(1, 1)
    while walk.rollout.state == "rising":
        walk.step()
    assert walk.step(trouble="x", worse="y", stable_lives=True).state == "finishing"
    assert walk.step().state == "done"


def test_without_another_version_cells_go_over_one_by_one() -> None:
    walk = Walk(3, 3, names={}, requests=0)
    assert walk.through()[-1] == (100, 3, 0)
    assert walk.now_s < 3 * POLICY.hold_s
    assert shares(walk.rollout, Canary()) == Canary()


def test_nothing_changes_while_nothing_happens() -> None:
    walk = Walk(1, 1)
    walk.step()
    assert walk.step() is walk.rollout
    assert replace(walk.rollout) == walk.step()


def test_shares() -> None:
    before = Canary(weights={"other": {"a": 1.0}})
    rising = begun(share_percent=25.0)
    found = shares(rising, before)
    assert found.weights == {"other": {"a": 1.0}, "chat": {"v1": 75.0, "v2": 25.0}}
    assert found.by == "random"
    assert shares(begun(), before).weights["chat"] == {"v1": 100.0, "v2": 0.0}
    back = undone_for(rising, "x")
    assert shares(back, found).weights["chat"] == {"v1": 100.0, "v2": 0.0}
    assert shares(replace(back, state="undone"), found).weights == before.weights
    done = replace(rising, state="finishing")
    assert shares(done, found).weights["chat"] == {"v1": 0.0, "v2": 100.0}
    assert shares(replace(done, state="done"), found).weights == before.weights
