"""Desired states, across agents."""

from __future__ import annotations

from pathlib import Path

from exaslurm.agent.orders import Orders
from exaslurm.core.cell import DesiredState


def desired(version: int, *, stop: bool = False) -> DesiredState:
    return DesiredState(version=version, ray=None, engines=(), stop=stop)


def test_newer_ones_are_applied_and_kept(tmp_path: Path) -> None:
    applied: list[DesiredState] = []
    changes: list[str] = []
    orders = Orders(tmp_path / "desired.json", applied.append, lambda: changes.append("x"))
    orders.recall()
    assert applied == []
    orders.accept(desired(3))
    orders.accept(desired(3))  # said again: applied again, nothing new
    orders.accept(desired(2, stop=True))  # late, of an earlier controller
    assert applied == [desired(3), desired(3)]
    assert (changes, orders.seen_version) == (["x"], 3)

    later: list[DesiredState] = []
    following = Orders(tmp_path / "desired.json", later.append, lambda: None)
    following.recall()
    assert (later, following.seen_version) == ([desired(3)], 3)


def test_what_cannot_be_kept_is_applied_all_the_same(tmp_path: Path) -> None:
    applied: list[DesiredState] = []
    orders = Orders(tmp_path / "gone" / "desired.json", applied.append, lambda: None)
    orders.accept(desired(1))
    orders.recall()
    assert applied == [desired(1)]
