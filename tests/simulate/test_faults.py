from __future__ import annotations

import itertools
from collections import Counter

from exaslurm.simulate.faults import KINDS, faults


def test_the_same_seed_gives_the_same_failures() -> None:
    assert list(faults(60, 10.0, seed=3)) == list(faults(60, 10.0, seed=3))
    assert list(faults(60, 10.0, seed=3)) != list(faults(60, 10.0, seed=4))


def test_few_have_every_kind_already() -> None:
    assert {fault.kind for fault in faults(len(KINDS), 10.0, seed=1)} == set(KINDS)


def test_many_have_each_in_its_share() -> None:
    kinds = Counter(fault.kind for fault in faults(480, 10.0, seed=1))
    assert set(kinds) == set(KINDS)
    assert kinds["engine killed"] > 100
    assert all(count >= 10 for count in kinds.values())


def test_they_come_at_the_asked_pace() -> None:
    found = list(faults(400, 10.0, seed=2))
    assert [fault.number for fault in found] == list(range(400))
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(found)]
    assert all(2.0 <= gap <= 18.0 for gap in gaps)
    assert 9.0 < sum(gaps) / len(gaps) < 11.0
