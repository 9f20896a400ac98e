"""A driver's own counters, from the interfaces of this host."""

from __future__ import annotations

import socket

import pytest

from exaslurm.fabric.ethtool import PAUSED, counters, pauses


def test_the_counters_of_a_driver() -> None:
    found = {name: counters(name) for _, name in socket.if_nameindex()}
    with_counters = {name: values for name, values in found.items() if values}
    if not with_counters:
        pytest.skip("no interface of this host has a driver that counts")
    for values in with_counters.values():
        assert all(name.isprintable() and name for name in values)
        assert all(0 <= value < 1 << 64 for value in values.values())
        assert any("rx" in name or "tx" in name for name in values)


def test_nothing_to_ask() -> None:
    assert counters("lo") == {}  # has no driver
    assert counters("no-such-interface-at-all") == {}
    assert pauses("lo") == {}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("rx_prio3_pause_duration", True), ("rx_global_pause_duration", True),
     ("tx_prio3_pause_duration", False), ("rx_prio3_pause", False)],
)  # fmt: skip
def test_pauses_are_those_of_the_other_side(name: str, is_one: bool) -> None:
    assert (PAUSED.fullmatch(name) is not None) == is_one
