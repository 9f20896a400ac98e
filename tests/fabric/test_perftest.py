"""perftest's tools: command lines, and their output in the formats of several releases."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from exaslurm.errors import PreflightFailed
from exaslurm.fabric import perftest

HEADER = """
 WARNING: BW peak won't be measured in this run.
---------------------------------------------------------------------------------------
                    RDMA_Write {what} Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 220[B]
---------------------------------------------------------------------------------------
 local address: LID 0x11 QPN 0x00a7 PSN 0x5d5c1b RKey 0x1fef00 VAddr 0x00560e6a4b6000
 remote address: LID 0x12 QPN 0x00a8 PSN 0x6f8c45 RKey 0x1fef00 VAddr 0x0055d3f04ff000
---------------------------------------------------------------------------------------
"""
LAT = HEADER.format(what="Latency") + (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
    " 2       1000          1.02           3.11         1.05     \t       1.06     \t"
    "0.03\t\t1.19 \t\t3.11   \n"
    "-------------------------------------------------------------------------------------\n"
)
OLD_LAT = HEADER.format(what="Latency") + (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"
    " 2       1000          0.98           2.50         1.01\n"
)
BW = HEADER.format(what="BW") + (
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    " 1048576    1000             197.24             197.21\t\t     0.023509\n"
)
MIB = BW.replace("Gb/sec", "MiB/sec").replace("197.21", "23512.00")


def test_latency() -> None:
    assert perftest.latency_us(LAT) == (1.05, 1.19)
    assert perftest.latency_us(OLD_LAT) == (1.01, None)


def test_bandwidth() -> None:
    assert perftest.bandwidth_gbps(BW) == 197.21
    assert perftest.bandwidth_gbps(MIB) == pytest.approx(197.23, abs=0.01)
    assert perftest.bandwidth_gbps(MIB.replace("MiB", "MB")) == pytest.approx(197.23, abs=0.01)


@pytest.mark.parametrize(
    ("output", "message"),
    [("", "no result"), (HEADER, "no result"), (BW, "no t_typical")],
)
def test_output_without_a_latency(output: str, message: str) -> None:
    with pytest.raises(PreflightFailed, match=message):
        perftest.latency_us(output)


def test_output_without_a_bandwidth() -> None:
    with pytest.raises(PreflightFailed, match="no BW average"):
        perftest.bandwidth_gbps(LAT)


def test_command_lines() -> None:
    assert perftest.argv(perftest.LATENCY, "mlx5_0", 1, 20400) == (
        "ib_write_lat", "--ib-dev", "mlx5_0", "--ib-port", "1", "--port", "20400",
        "--iters", "1000", "--CPU-freq",
    )  # fmt: skip
    assert perftest.argv(perftest.BANDWIDTH, "mlx5_2", 2, 20401, peer="10.0.0.7") == (
        "ib_write_bw", "--ib-dev", "mlx5_2", "--ib-port", "2", "--port", "20401",
        "--iters", "1000", "--size", "1048576", "--report_gbits", "--CPU-freq", "10.0.0.7",
    )  # fmt: skip


def tool(directory: Path, name: str, body: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_side_that_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins that print what the real ones print, and that fail as they do."""

    def run(tool: str, timeout_s: float = 5.0) -> str:
        return perftest.call(tool, "mlx5_0", 1, 20400, "10.0.0.7", timeout_s=timeout_s)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert not perftest.installed()
    with pytest.raises(PreflightFailed, match="ib_write_lat is not installed"):
        run(perftest.LATENCY)
    (tmp_path / "lat.txt").write_text(LAT)
    tool(tmp_path, "ib_write_lat", f'test "$5" = --port && cat {tmp_path}/lat.txt')
    tool(tmp_path, "ib_write_bw", "echo 'Unable to init the socket connection' >&2; exit 1")
    assert perftest.installed()
    assert perftest.latency_us(run(perftest.LATENCY)) == (1.05, 1.19)
    with pytest.raises(PreflightFailed, match="ended with 1: Unable to init the socket"):
        run(perftest.BANDWIDTH)
    tool(tmp_path, "ib_write_lat", "exec sleep 30")
    with pytest.raises(PreflightFailed, match=r"no result in 0\.2 s"):
        run(perftest.LATENCY, timeout_s=0.2)


def test_the_side_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with perftest.waiting(perftest.LATENCY, "mlx5_0", 1, port) as listens:
        assert not listens  # not installed
    server = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
        "c, _ = s.accept(); c.sendall(b'hello')"
    )
    tool(tmp_path, "ib_write_lat", f'exec {sys.executable} -c "{server}" "$6"')
    with perftest.waiting(perftest.LATENCY, "mlx5_0", 1, port) as listens:
        assert listens
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            assert sock.recv(5) == b"hello"
    assert not perftest.wait_for_listener(port, timeout_s=0.0)  # it has ended


def test_a_listener_is_seen_without_being_called() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert perftest.wait_for_listener(port, timeout_s=5)
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    assert not perftest.wait_for_listener(port, timeout_s=0.1)
