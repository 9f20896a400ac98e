"""From two readings of a port's counters to rates, and to the share of time it was held up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exaslurm.core.fabric import XMIT_WAIT_BYTES, PortFigures
from exaslurm.core.topology import Hca, HcaPort
from exaslurm.fabric.counters import SYS, TCP_RETRANSMITS, read_port, read_state
from exaslurm.fabric.deltas import Delta, delta
from exaslurm.fabric.ethtool import PAUSED

# Damaged or lost packets, and repairs of the link.
ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "hni_pcs_uncorrected_cw",
    "tx_errors",
    "rx_errors",
    "rx_crc_errors",
)
DISCARDS = ("port_xmit_discards", "VL15_dropped", "tx_dropped", "rx_dropped", "rx_missed_errors")
# What the transport sends again, sees out of order or waits for in vain: mlx5 and others
# (drivers/infiniband/hw), rxe, bnxt_re, efa, qib, and Slingshot's retry handler.
RETRANSMITS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rcvd_seq_err",
    "out_of_seq_request",
    "completer_retry_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "retrans_pkts",
    "rc_resends",
    "seq_naks",
    "rc_timeouts",
    "pct_retry_srb_requests",
    "pct_spt_timeouts",
    "hni_llr_tx_replay_event",
    "hni_llr_rx_replay_event",
    TCP_RETRANSMITS,
)
# Octets of each unit of the counters of data sent and received.
_XMIT = {"port_xmit_data": 4, "hni_sts_tx_ok_octets": 1, "tx_bytes": 1}
_RCV = {"port_rcv_data": 4, "hni_sts_rx_ok_octets": 1, "rx_bytes": 1}
# What counts the time in which a port was held up, by units a second: cycles of Cassini's clock
# for each traffic class, microseconds of pause frames for each priority.
_HELD_UP = (
    (re.compile(r"hni_tx_paused_[0-7]"), 1e9),
    (PAUSED, 1e6),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of a port at a moment (monotonic seconds)."""

    at_s: float
    state: str
    counters: Mapping[str, int]


def figures(
    hca: Hca,
    port: HcaPort,
    before: Reading,
    now: Reading,
    *,
    xmit_wait_bytes: int = XMIT_WAIT_BYTES,
) -> PortFigures:
    """What happened between two readings of a port. ``xmit_wait_bytes``: what the port could have
    sent in one tick of ``port_xmit_wait``."""
    interval_s = max(now.at_s - before.at_s, 1e-9)
    bytes_per_s = port.rate_gbps * 1e9 / 8
    most = {
        name: 1.25 * bytes_per_s * interval_s / octets for name, octets in (_XMIT | _RCV).items()
    }
    most["port_xmit_wait"] = 1.25 * bytes_per_s * interval_s / xmit_wait_bytes
    notes: list[str] = []

    def seen(names: Sequence[str]) -> dict[str, Delta]:
        found = {}
        for name in names:
            if name in before.counters and name in now.counters:
                found[name] = delta(
                    name,
                    before.counters[name],
                    now.counters[name],
                    most=most.get(name) if port.rate_gbps else None,
                )
                if found[name].how in ("full", "reset"):
                    notes.append(_remark(name, found[name]))
        return found

    def rate(names: Sequence[str]) -> float | None:
        known = [d.value for d in seen(names).values() if d.value is not None]
        return sum(known) / interval_s if known else None

    def gbps(units: Mapping[str, int]) -> float | None:
        for name, change in seen(tuple(units)).items():
            if change.value is not None:
                return change.value * units[name] * 8 / interval_s / 1e9
        return None

    return PortFigures(
        device=hca.name,
        port=port.number,
        fabric=hca.fabric,
        state=now.state,
        rate_gbps=port.rate_gbps,
        interval_s=round(interval_s, 3),
        congestion=_congestion(
            seen([n for n in now.counters if _units(n, 1.0)]),
            interval_s,
            bytes_per_s / xmit_wait_bytes,
        ),
        xmit_gbps=_rounded(gbps(_XMIT)),
        rcv_gbps=_rounded(gbps(_RCV)),
        errors_per_s=_rounded(rate(ERRORS)),
        discards_per_s=_rounded(rate(DISCARDS)),
        retransmits_per_s=_rounded(rate(RETRANSMITS)),
        notes=tuple(notes),
    )


def _congestion(seen: Mapping[str, Delta], interval_s: float, ticks_per_s: float) -> float | None:
    shares = []
    for name, change in seen.items():
        per_s = _units(name, ticks_per_s)
        if change.value is not None and per_s:
            shares.append(change.value / interval_s / per_s)
    # One paused traffic class holds up what is in it: the worst one counts, not their sum.
    return round(min(1.0, max(shares)), 4) if shares else None


def _units(name: str, ticks_per_s: float) -> float:
    """How many units of a counter a second has; 0 if it counts no time that a port was held up."""
    if name == "port_xmit_wait":
        return ticks_per_s
    return next((per_s for names, per_s in _HELD_UP if names.fullmatch(name)), 0.0)


def _remark(name: str, change: Delta) -> str:
    if change.how == "full":
        return f"{name} is at its maximum and counts no more (an admin can reset it: perfquery -R)"
    return f"{name} was reset"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@dataclass(slots=True)
class Sampler:
    """Reads the same ports again and again; figures are those since the last time."""

    ports: Sequence[tuple[Hca, HcaPort]]
    sys: Path = SYS
    xmit_wait_bytes: int = XMIT_WAIT_BYTES
    clock: Callable[[], float] = time.monotonic
    _last: dict[tuple[str, int], Reading] = field(default_factory=dict)

    def sample(self) -> tuple[PortFigures, ...]:
        """Figures of all ports, by device and port; empty the first time."""
        found = []
        for hca, port in self.ports:
            now = Reading(
                self.clock(), read_state(hca, port, self.sys), read_port(hca, port, self.sys)
            )
            before = self._last.get((hca.name, port.number))
            self._last[(hca.name, port.number)] = now
            if before is not None:
                found.append(figures(hca, port, before, now, xmit_wait_bytes=self.xmit_wait_bytes))
        return tuple(found)
