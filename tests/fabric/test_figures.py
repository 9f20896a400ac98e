"""Rates and congestion from counters in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps, loads
from exaslurm.core.fabric import PortFigures, fabric_of, usable_ports
from exaslurm.core.topology import Fabric, Hca, HcaPort
from exaslurm.fabric.counters import read_port, read_state
from exaslurm.fabric.figures import Reading, Sampler, figures
from tests.fabric.conftest import CXI, write


def port(rate_gbps: float = 200.0, state: str = "ACTIVE", number: int = 1) -> HcaPort:
    return HcaPort(number=number, state=state, rate_gbps=rate_gbps, link_layer="x")


MLX5 = Hca(name="mlx5_0", fabric="infiniband", ports=(port(),))
CASSINI = Hca(name="cxi0", fabric="slingshot", ports=(port(),), interfaces=("hsn0",))
HSN = Hca(name="hsn0", fabric="slingshot", ports=(port(),))
ETH = Hca(name="eth0", fabric="ethernet", ports=(port(25.0),), interfaces=("eth0",))


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def after(
    hca: Hca, sys: Path, changes: dict[str, str], *, seconds: float = 10.0, wait_bytes: int = 8
) -> PortFigures:
    """Figures of the port after ``seconds`` in which these files became that."""
    clock = Clock()
    sampler = Sampler(((hca, hca.ports[0]),), sys, wait_bytes, clock)
    assert sampler.sample() == ()
    write(sys, changes)
    clock.now += seconds
    (found,) = sampler.sample()
    assert loads(PortFigures, dumps(found), where="x") == found
    return found


def counters(**values: int) -> dict[str, str]:
    place = "class/infiniband/mlx5_0/ports/1/counters"
    return {f"{place}/{name}": f"{value}\n" for name, value in values.items()}


def test_what_is_counted(sys: Path) -> None:
    ib = read_port(MLX5, MLX5.ports[0], sys)
    assert (ib["port_xmit_wait"], ib["out_of_sequence"], ib["port_rcv_data"]) == (
        123456, 4, 8000000000,
    )  # fmt: skip
    assert "lifespan" not in ib  # a setting
    assert "port_xmit_constraint_errors" not in ib  # N/A
    cxi = read_port(CASSINI, CASSINI.ports[0], sys)
    assert cxi["hni_pcs_uncorrected_cw"] == 90049
    assert "pct_req_ordered" not in cxi
    assert read_port(HSN, HSN.ports[0], sys) == cxi  # by its interface's card
    assert read_port(ETH, ETH.ports[0], sys)["rx_bytes"] == 6000
    assert read_port(ETH, ETH.ports[0], sys / "nowhere") == {}


def test_congestion_is_the_share_of_waiting_ticks(sys: Path) -> None:
    # 200 Gbit/s are 3.125e9 ticks of 8 bytes a second; 3.125e9 in 10 s are a tenth of them.
    found = after(MLX5, sys, counters(port_xmit_wait=123456 + 3_125_000_000))
    assert found.congestion == pytest.approx(0.1)
    assert found.interval_s == 10.0
    assert (found.xmit_gbps, found.errors_per_s, found.retransmits_per_s) == (0.0, 0.0, 0.0)
    assert found.notes == ()
    assert (found.name, found.state, found.rate_gbps) == ("mlx5_0:1", "ACTIVE", 200.0)


def test_a_device_that_counts_longer_ticks(sys: Path) -> None:
    found = after(MLX5, sys, counters(port_xmit_wait=123456 + 781_250_000), wait_bytes=32)
    assert found.congestion == pytest.approx(0.1)


def test_rates_of_data_errors_and_retransmits(sys: Path) -> None:
    hw = "class/infiniband/mlx5_0/ports/1/hw_counters"
    changes = {
        **counters(
            port_xmit_data=9_000_000_000 + 31_250_000_000,  # 125 GB
            port_rcv_data=8_000_000_000 + 3_125_000_000,
            symbol_error=30,
            link_downed=2,
            port_xmit_discards=5,
        ),
        f"{hw}/out_of_sequence": "24\n",
        f"{hw}/packet_seq_err": "13\n",
    }
    found = after(MLX5, sys, changes)
    assert found.xmit_gbps == pytest.approx(100.0)
    assert found.rcv_gbps == pytest.approx(10.0)
    assert found.errors_per_s == pytest.approx(3.1)
    assert found.discards_per_s == pytest.approx(0.5)
    assert found.retransmits_per_s == pytest.approx(3.0)


def test_a_counter_that_is_full_tells_nothing_and_says_so(sys: Path) -> None:
    write(sys, counters(port_xmit_wait=2**32 - 1))
    found = after(MLX5, sys, {})
    assert found.congestion is None
    assert len(found.notes) == 1
    assert found.notes[0].startswith("port_xmit_wait is at its maximum")


def test_a_reset_is_no_burst(sys: Path) -> None:
    found = after(MLX5, sys, counters(port_xmit_wait=0, port_xmit_data=0, link_downed=0))
    assert found.congestion == 0.0
    assert found.xmit_gbps == 0.0
    assert set(found.notes) == {
        "port_xmit_wait was reset", "port_xmit_data was reset", "link_downed was reset",
    }  # fmt: skip


def test_a_wrap_is_counted_through(sys: Path) -> None:
    # A 32-bit counter of ticks goes round in 1.4 s on a port that is held up all the time.
    write(sys, counters(port_xmit_wait=2**32 - 1_000_000))
    found = after(MLX5, sys, counters(port_xmit_wait=311_500_000))
    assert found.congestion == pytest.approx(312_500_000 / 31_250_000_000)
    assert found.notes == ()


def test_a_port_that_went_down(sys: Path) -> None:
    found = after(MLX5, sys, {"class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"})
    assert found.state == "DOWN"
    assert read_state(ETH, ETH.ports[0], sys) == "ACTIVE"
    write(sys, {"class/net/eth0/operstate": "down\n"})
    assert read_state(ETH, ETH.ports[0], sys) == "DOWN"


def test_slingshot(sys: Path) -> None:
    place = "devices/pci0000:c0/0000:c1:00.0/telemetry"
    stamp = "@1764472010.123456789\n"
    assert CXI["hni_tx_paused_0"].startswith("1000@")
    changes = {
        f"{place}/hni_tx_paused_0": f"{1000 + 2_500_000_000}{stamp}",
        f"{place}/hni_tx_paused_1": f"{1_000_000_000}{stamp}",
        f"{place}/hni_sts_tx_ok_octets": f"{126_000_000_000}{stamp}",
        f"{place}/hni_pcs_uncorrected_cw": f"90059{stamp}",
        f"{place}/pct_retry_srb_requests": f"27{stamp}",
    }
    found = after(CASSINI, sys, changes)
    assert found.congestion == pytest.approx(0.25)  # of the cycles of the class that waits most
    assert found.xmit_gbps == pytest.approx(100.0)
    assert found.errors_per_s == pytest.approx(1.0)
    assert found.retransmits_per_s == pytest.approx(2.0)


def test_pause_frames_hold_a_port_up() -> None:
    roce = Hca(name="mlx5_0", fabric="roce", ports=(port(100.0),), interfaces=("ens1",))
    before = {"rx_prio0_pause_duration": 0, "rx_prio3_pause_duration": 500, "port_xmit_wait": 0}
    now = {"rx_prio0_pause_duration": 10, "rx_prio3_pause_duration": 2_500_500, "port_xmit_wait": 0}
    found = figures(
        roce, roce.ports[0], Reading(1.0, "ACTIVE", before), Reading(11.0, "ACTIVE", now)
    )
    assert found.congestion == pytest.approx(0.25)


SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin OutSegs RetransSegs InErrs
Tcp: 1 200 1000 {} 0
"""


def test_tcp_segments_that_were_sent_again(sys: Path) -> None:
    write(sys.parent, {"proc/net/snmp": SNMP.format(100)})
    found = after(ETH, sys, {"../proc/net/snmp": SNMP.format(130)})
    assert found.retransmits_per_s == pytest.approx(3.0)


def test_ethernet_has_no_congestion_counter(sys: Path) -> None:
    place = "class/net/eth0/statistics"
    found = after(ETH, sys, {f"{place}/tx_bytes": "12500005000\n", f"{place}/rx_dropped": "20\n"})
    assert found.congestion is None
    assert found.retransmits_per_s is None
    assert found.xmit_gbps == pytest.approx(10.0)
    assert found.discards_per_s == pytest.approx(2.0)


def hca(name: str, fabric: Fabric, *ports: HcaPort, interfaces: tuple[str, ...] = ()) -> Hca:
    return Hca(name=name, fabric=fabric, ports=ports, interfaces=interfaces)


NODE = (
    hca("eth0", "ethernet", port(400.0), interfaces=("eth0",)),
    hca("mlx5_0", "infiniband", port(200.0), interfaces=("ib0",)),
    hca("mlx5_1", "infiniband", port(200.0, state="DOWN"), port(200.0, number=2)),
    hca("mlx5_2", "infiniband", port(100.0)),
    hca("mlx5_3", "roce", port(25.0), interfaces=("ens3",)),
)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), ["mlx5_0:1", "mlx5_1:2", "mlx5_2:1"]),
        (("mlx5_3",), ["mlx5_3:1"]),
        (("ens*", "eth?"), ["eth0:1", "mlx5_3:1"]),
        (("mlx4_*",), []),
    ],
)
def test_ports_that_engines_may_use(patterns: tuple[str, ...], names: list[str]) -> None:
    found = usable_ports(NODE, patterns)
    assert [f"{device.name}:{used.number}" for device, used in found] == names


def test_the_fabric_of_a_node() -> None:
    assert fabric_of(NODE) == "infiniband"
    assert fabric_of(NODE, ("mlx5_3",)) == "roce"
    assert fabric_of(NODE[:1]) == "ethernet"
    assert fabric_of(()) is None
