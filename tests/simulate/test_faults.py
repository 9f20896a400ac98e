from __future__ import annotations

import itertools
from collections import Counter

from exaslurm.simulate.faults import KINDS, Fault, faults


def some(count: int, *, every_s: float = 10.0, seed: int = 1, most_s: float = 1e9) -> list[Fault]:
    return list(itertools.islice(faults(every_s, seed=seed, most_s=most_s), count))


def test_the_same_seed_gives_the_same_failures() -> None:
    assert some(60, seed=3) == some(60, seed=3)
    assert some(60, seed=3) != some(60, seed=4)


def test_few_have_every_kind_already() -> None:
    assert {fault.kind for fault in some(len(KINDS))} == set(KINDS)


def test_many_have_each_in_its_share() -> None:
    kinds = Counter(fault.kind for fault in some(480))
    assert set(kinds) == set(KINDS)
    assert kinds["engine killed"] > 100
    assert all(count >= 10 for count in kinds.values())


def test_they_come_at_the_asked_pace() -> None:
    found = some(400, seed=2)
    assert [fault.number for fault in found] == list(range(400))
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(found)]
    assert all(2.0 <= gap <= 18.0 for gap in gaps)
    assert 9.0 < sum(gaps) / len(gaps) < 11.0


def test_none_lasts_longer_than_asked() -> None:
    assert max(fault.lasts_s for fault in some(200)) > 200.0
    assert max(fault.lasts_s for fault in some(200, most_s=40.0)) == 40.0
