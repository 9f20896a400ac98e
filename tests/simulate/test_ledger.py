from __future__ import annotations

from exaslurm.simulate.ledger import HAND_OVER_S, Ledger, doubled


def test_a_hand_over_is_measured() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.look(["c000", "c000.2", "c001"], 10.0, impaired=False)
    ledger.look(["c000.2", "c001"], 10.0, impaired=False)
    assert (ledger.longest_s, ledger.too_long) == (30.0, [])


def test_one_that_takes_too_long_is_named_once() -> None:
    ledger = Ledger()
    for _ in range(int(HAND_OVER_S / 10) + 3):
        ledger.look(["c000", "c000.2"], 10.0, impaired=False)
    assert ledger.too_long == ["c000"]


def test_time_without_a_supervisor_does_not_count() -> None:
    ledger = Ledger()
    for _ in range(20):
        ledger.look(["c000", "c000.2"], 10.0, impaired=True)
    assert (ledger.longest_s, ledger.too_long) == (0.0, [])


def test_a_turn_with_two_jobs_is_named() -> None:
    assert doubled({"101": "c000", "102": "c001", "103": "c000.2"}) == []
    assert doubled({"101": "c000", "102": "c001", "103": "c000"}) == ["c000"]
