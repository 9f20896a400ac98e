"""Counters of a network port, as the kernel shows them under /sys, without any tool.

* InfiniBand, RoCE, Omni-Path: ``class/infiniband/<device>/ports/<n>/{counters,hw_counters}``
  (https://docs.kernel.org/admin-guide/abi-stable.html, sysfs-class-infiniband);
* Slingshot: ``class/cxi/<device>/device/telemetry/<name>``, each ``VALUE@SECONDS.NANOSECONDS``;
* every network interface: ``class/net/<interface>/statistics``, pauses as its driver counts them,
  and for plain Ethernet the host's TCP segments that were sent again (``/proc/net/snmp``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exaslurm.core.topology import Hca, HcaPort
from exaslurm.fabric.ethtool import pauses

SYS = Path("/sys")
TCP_RETRANSMITS = "TcpRetransSegs"

_NET = (
    "tx_bytes",
    "rx_bytes",
    "tx_errors",
    "rx_errors",
    "rx_crc_errors",
    "tx_dropped",
    "rx_dropped",
    "rx_missed_errors",
)
_CXI = (
    "hni_sts_tx_ok_octets",
    "hni_sts_rx_ok_octets",
    "hni_pcs_uncorrected_cw",
    "hni_llr_tx_replay_event",
    "hni_llr_rx_replay_event",
    "pct_retry_srb_requests",
    "pct_spt_timeouts",
    "pct_sct_timeouts",
    *(f"hni_tx_paused_{traffic_class}" for traffic_class in range(8)),
)


def read_port(hca: Hca, port: HcaPort, sys: Path = SYS) -> dict[str, int]:
    """Everything that is counted for a port, by the kernel's own names; empty where nothing is."""
    if hca.fabric == "slingshot":
        device = cxi_device(hca, sys)
        found = {} if device is None else _numbers(device / "device" / "telemetry", _CXI)
        return found or _interface(hca, sys)
    if hca.fabric == "ethernet":
        # A recorded /sys lies beside its /proc.
        return {**_interface(hca, sys), **_pauses(hca, sys), **_tcp(sys.parent / "proc")}
    directory = sys / "class/infiniband" / hca.name
    here = directory / "ports" / str(port.number)
    return {
        **_numbers(directory / "hw_counters"),
        **_numbers(here / "diag_counters"),  # qib
        **_numbers(here / "hw_counters"),
        **_numbers(here / "counters"),
        **(_pauses(hca, sys) if hca.fabric == "roce" else {}),
    }


def read_state(hca: Hca, port: HcaPort, sys: Path = SYS) -> str:
    """The port's state now, in the words of ``HcaPort``; the known one where nothing tells."""
    if (sys / "class/infiniband" / hca.name).exists():
        # "4: ACTIVE"
        text = _text(sys / "class/infiniband" / hca.name / "ports" / str(port.number) / "state")
        return port.state if text is None else text.partition(":")[2].strip() or port.state
    states = [_text(sys / "class/net" / name / "operstate") for name in interfaces(hca)]
    if "up" in states:
        return "ACTIVE"
    return "DOWN" if "down" in states else port.state


def cxi_device(hca: Hca, sys: Path = SYS) -> Path | None:
    """The ``class/cxi`` entry of a Slingshot card: its own name, or that of the card which has
    its network interface."""
    root = sys / "class/cxi"
    if (root / hca.name).exists():
        return root / hca.name
    cards = {(sys / "class/net" / name / "device").resolve() for name in interfaces(hca)}
    for entry in sorted(root.glob("cxi*")):
        if (entry / "device").resolve() in cards:
            return entry
    return None


def interfaces(hca: Hca) -> tuple[str, ...]:
    """Network interfaces of a device (a device without any RDMA is one)."""
    return hca.interfaces or (hca.name,)


def _interface(hca: Hca, sys: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in interfaces(hca):
        for key, value in _numbers(sys / "class/net" / name / "statistics", _NET).items():
            found[key] = found.get(key, 0) + value
    return found


def _pauses(hca: Hca, sys: Path) -> dict[str, int]:
    """The worst of a device's interfaces; the driver knows this host only."""
    found: dict[str, int] = {}
    for name in interfaces(hca) if sys == SYS else ():
        for key, value in pauses(name).items():
            found[key] = max(value, found.get(key, 0))
    return found


def _tcp(proc: Path) -> dict[str, int]:
    # Two lines that begin with "Tcp:": names, then values.
    rows = [
        line.split()[1:]
        for line in (_text(proc / "net/snmp") or "").splitlines()
        if line.startswith("Tcp:")
    ]
    values = dict(zip(*rows, strict=False)) if len(rows) == 2 else {}
    text = values.get("RetransSegs", "")
    return {TCP_RETRANSMITS: int(text)} if text.isdigit() else {}


def _numbers(directory: Path, names: Iterable[str] | None = None) -> dict[str, int]:
    try:
        wanted = sorted(p.name for p in directory.iterdir()) if names is None else names
    except OSError:
        return {}
    found = {}
    for name in wanted:
        text = (_text(directory / name) or "").partition("@")[0]
        # "lifespan" is a setting among the counters; some drivers answer "N/A (no PMA)".
        if text.isdigit() and name != "lifespan":
            found[name] = int(text)
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
