"""Counters that wrap, are reset, or are full."""

from __future__ import annotations

import pytest

from exaslurm.fabric.deltas import Delta, delta, width


@pytest.mark.parametrize(
    ("name", "before", "now", "most", "expected"),
    [
        ("port_xmit_data", 10, 25, None, Delta(15, "counted")),
        ("port_xmit_data", 25, 25, None, Delta(0, "counted")),
        # 64 bits (extended counters) and 32 bits go round.
        ("port_xmit_data", 2**64 - 5, 10, 1e6, Delta(15, "wrapped")),
        ("port_rcv_data", 2**32 - 5, 10, 1e6, Delta(15, "wrapped")),
        ("tx_bytes", 2**64 - 1, 0, None, Delta(1, "wrapped")),
        ("port_xmit_wait", 2**32 - 5, 10, 1e6, Delta(15, "wrapped")),
        # Near the top by chance, but more than the time allows: somebody set it to zero.
        ("port_xmit_data", 2**32 - 2**30, 7, 1e6, Delta(7, "reset")),
        ("port_xmit_data", 12345, 7, None, Delta(7, "reset")),
        ("symbol_error", 12, 0, None, Delta(0, "reset")),
        ("link_downed", 250, 3, None, Delta(3, "reset")),
        ("symbol_error", 2**16 - 1, 0, None, Delta(0, "reset")),
        ("out_of_sequence", 5, 2, None, Delta(2, "reset")),
        # Classic counters stay at their maximum: it may have been more, or anything.
        ("link_downed", 250, 255, None, Delta(5, "full")),
        ("link_downed", 255, 255, None, Delta(None, "full")),
        ("port_xmit_wait", 2**32 - 1, 2**32 - 1, None, Delta(None, "full")),
        # A driver that counts them in 64 bits goes past that.
        ("port_xmit_wait", 2**32 - 1, 2**32 + 9, None, Delta(10, "counted")),
        ("symbol_error", 2**20, 2**20, None, Delta(0, "counted")),
        # Others have no maximum to stop at.
        ("tx_bytes", 2**32 - 1, 2**32 - 1, None, Delta(0, "counted")),
        ("symbol_error", 0, 0, None, Delta(0, "counted")),
    ],
)
def test_the_difference_of_two_readings(
    name: str, before: int, now: int, most: float | None, expected: Delta
) -> None:
    assert delta(name, before, now, most=most) == expected


@pytest.mark.parametrize(
    ("name", "value", "bits"),
    [("link_downed", 3, 8), ("link_downed", 300, 32), ("symbol_error", 2**40, 64),
     ("port_xmit_wait", 5, 32), ("packet_seq_err", 5, 64)],
)  # fmt: skip
def test_the_width_of_a_counter(name: str, value: int, bits: int) -> None:
    assert width(name, value) == bits
