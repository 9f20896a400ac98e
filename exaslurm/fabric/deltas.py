"""The difference of two readings of a counter that may have wrapped, been reset or be full.

The classic InfiniBand port counters are 4 to 32 bits wide and stay at their maximum once they
are there (InfiniBand Architecture Specification, "Performance Management"; widths as in the
kernel's ``drivers/infiniband/core/sysfs.c``); extended ones and those of drivers wrap at 64 bits.
``perfquery -R`` and a driver that is loaded again set any of them to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CLASSIC_BITS: dict[str, int] = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
}

How = Literal["counted", "wrapped", "reset", "full"]


@dataclass(frozen=True, slots=True)
class Delta:
    """``value`` events at least, None where the counter is full and can tell nothing."""

    value: int | None
    how: How


def delta(name: str, before: int, now: int, *, most: float | None = None) -> Delta:
    """What ``name`` counted between two readings; ``most`` is what it can have counted at all in
    that time (None: unknown), which tells a wrap from a reset."""
    if now > before:
        return Delta(now - before, "full" if now == _full(name, now) else "counted")
    if now == before:
        full = now != 0 and now == _full(name, now)
        return Delta(None if full else 0, "full" if full else "counted")
    bits = width(name, before)
    wrapped = now + (1 << bits) - before
    # The small ones only ever fill up. A larger one that went down from near its top has wrapped,
    # or was reset by chance just then: the time that passed decides.
    from_top = bits >= 32 and before >= 3 << (bits - 2) and now < 1 << (bits - 2)
    if from_top and (most is None or wrapped <= most):
        return Delta(wrapped, "wrapped")
    return Delta(now, "reset")


def width(name: str, value: int) -> int:
    """Bits of a counter that has been seen to hold ``value``."""
    bits = CLASSIC_BITS.get(name, 64)
    if value < 1 << bits:
        return bits
    return 32 if value < 1 << 32 else 64


def _full(name: str, value: int) -> int | None:
    """The value at which a classic counter stays; None if it does not."""
    if name not in CLASSIC_BITS:
        return None
    bits = CLASSIC_BITS[name]
    return (1 << bits) - 1 if value < 1 << bits else None
