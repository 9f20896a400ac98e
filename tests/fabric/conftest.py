"""A /sys with the network devices of several kinds of node, as files in the kernel's formats."""

from __future__ import annotations

from pathlib import Path

import pytest

# ConnectX-6, HDR: counters and hw_counters as an mlx5 driver has them.
IB = {
    "ports/1/state": "4: ACTIVE\n",
    "ports/1/phys_state": "5: LinkUp\n",
    "ports/1/rate": "200 Gb/sec (4X HDR)\n",
    "ports/1/link_layer": "InfiniBand\n",
    "ports/1/counters/VL15_dropped": "0\n",
    "ports/1/counters/excessive_buffer_overrun_errors": "0\n",
    "ports/1/counters/link_downed": "1\n",
    "ports/1/counters/link_error_recovery": "0\n",
    "ports/1/counters/local_link_integrity_errors": "0\n",
    "ports/1/counters/port_rcv_constraint_errors": "0\n",
    "ports/1/counters/port_rcv_data": "8000000000\n",
    "ports/1/counters/port_rcv_errors": "0\n",
    "ports/1/counters/port_rcv_packets": "7000000\n",
    "ports/1/counters/port_xmit_constraint_errors": "N/A (no PMA)\n",
    "ports/1/counters/port_xmit_data": "9000000000\n",
    "ports/1/counters/port_xmit_discards": "0\n",
    "ports/1/counters/port_xmit_packets": "8000000\n",
    "ports/1/counters/port_xmit_wait": "123456\n",
    "ports/1/counters/symbol_error": "0\n",
    "ports/1/hw_counters/duplicate_request": "0\n",
    "ports/1/hw_counters/implied_nak_seq_err": "0\n",
    "ports/1/hw_counters/lifespan": "10\n",
    "ports/1/hw_counters/local_ack_timeout_err": "2\n",
    "ports/1/hw_counters/out_of_sequence": "4\n",
    "ports/1/hw_counters/packet_seq_err": "3\n",
    "ports/1/hw_counters/rnr_nak_retry_err": "0\n",
}

CXI = {
    "hni_sts_tx_ok_octets": "1000000000@1764472000.123456789\n",
    "hni_sts_rx_ok_octets": "2000000000@1764472000.123456789\n",
    "hni_pcs_uncorrected_cw": "90049@1764472000.123456789\n",
    "hni_llr_tx_replay_event": "0@1764472000.123456789\n",
    "hni_llr_rx_replay_event": "0@1764472000.123456789\n",
    "pct_retry_srb_requests": "7@1764472000.123456789\n",
    "pct_spt_timeouts": "0@1764472000.123456789\n",
    "hni_tx_paused_0": "1000@1764472000.123456789\n",
    "hni_tx_paused_1": "0@1764472000.123456789\n",
    "pct_req_ordered": "12@1764472000.123456789\n",
}

NET = {
    "tx_bytes": "5000\n",
    "rx_bytes": "6000\n",
    "tx_errors": "0\n",
    "rx_errors": "0\n",
    "rx_crc_errors": "0\n",
    "tx_dropped": "0\n",
    "rx_dropped": "0\n",
    "rx_missed_errors": "0\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """One InfiniBand port, one Slingshot card (cxi0 with hsn0) and one Ethernet interface."""
    root = tmp_path / "sys"
    write(root / "class/infiniband/mlx5_0", IB)
    card = root / "devices/pci0000:c0/0000:c1:00.0"
    write(card / "telemetry", CXI)
    for entry in ("class/cxi/cxi0", "class/net/hsn0"):
        (root / entry).mkdir(parents=True)
        (root / entry / "device").symlink_to(card)
    for interface in ("hsn0", "eth0"):
        write(root / "class/net" / interface / "statistics", NET)
        write(root / "class/net" / interface, {"operstate": "up\n"})
    return root
