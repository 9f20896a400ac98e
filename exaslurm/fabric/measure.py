"""Round trips and throughput of one TCP connection between two nodes.

The caller leads; the other end follows orders until it is told that this is all. Both are bounded
in time and size. One stream of TCP driven by Python shows whether a path works and is about as
fast as others; it does not fill a 200 Gbit/s port, which ``perftest`` does.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from dataclasses import dataclass

from exaslurm.errors import PreflightFailed
from exaslurm.fabric import perftest
from exaslurm.fabric.handshake import HandshakeError, receive
from exaslurm.fabric.perftest import RdmaMeasured

_ORDER = struct.Struct("!BId")
_READY, _ECHO, _SINK, _SOURCE, _RDMA, _END = range(1, 7)
_PORT = struct.Struct("!H")
_FRAME = struct.Struct("!I")
_SUM = struct.Struct("!Qd")
_BLOCK = 1 << 20
_PING_BYTES = 64
_BATCH, _WARM_UP = 50, 20
_TOOLS = (perftest.LATENCY, perftest.BANDWIDTH)
_TOOL_S = 20.0
_MAX_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a pair measures, in seconds: round trips (at most ``pings`` of them), then each
    direction of the stream. ``step_s`` limits every single answer, ``turn_s`` the wait for a
    partner that is still busy with another one."""

    rtt_s: float = 0.1
    pings: int = 500
    stream_s: float = 0.2
    step_s: float = 5.0
    turn_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rdma:
    """This node's port for ``perftest``, and the TCP port by which its tools find each other."""

    device: str
    ib_port: int
    tcp_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A round trip of 64 bytes in microseconds; Gbit/s from the caller and to it; ``rdma`` by
    ``perftest`` (``rdma_error``: why that failed)."""

    rtt_us: float
    rtt_p99_us: float
    gbps_out: float
    gbps_in: float
    rdma: RdmaMeasured | None = None
    rdma_error: str | None = None


def lead(sock: socket.socket, effort: Effort, rdma: Rdma | None = None) -> Measured:
    """The caller's side. OSError if the other end is gone or too slow."""
    sock.settimeout(effort.turn_s)
    sock.sendall(_ORDER.pack(_READY, 0, 0.0))
    receive(sock, 1)
    sock.settimeout(effort.step_s)
    trips = _round_trips(sock, effort)
    sock.sendall(_ORDER.pack(_SINK, 0, effort.stream_s))
    _pour(sock, effort.stream_s)
    size, seconds = _SUM.unpack(receive(sock, _SUM.size))
    out = _gbps(size, seconds)
    sock.sendall(_ORDER.pack(_SOURCE, 0, effort.stream_s))
    back = _gbps(*_drain(sock))
    by_rdma, rdma_error = None, None
    if rdma is not None:
        try:
            by_rdma = _lead_rdma(sock, rdma)
        except PreflightFailed as error:
            rdma_error = str(error)
    sock.sendall(_ORDER.pack(_END, 0, 0.0))
    return Measured(
        rtt_us=round(statistics.median(trips) * 1e6, 1),
        rtt_p99_us=round(statistics.quantiles(trips, n=100, method="inclusive")[98] * 1e6, 1),
        gbps_out=round(out, 3),
        gbps_in=round(back, 3),
        rdma=by_rdma,
        rdma_error=rdma_error,
    )


def follow(sock: socket.socket, effort: Effort, rdma: Rdma | None = None) -> None:
    """The other side, until the caller says that this is all. OSError as of ``lead``."""
    sock.settimeout(effort.turn_s)
    while True:
        order, count, seconds = _ORDER.unpack(receive(sock, _ORDER.size))
        sock.settimeout(effort.step_s)
        if order == _READY:
            sock.sendall(b"\x01")
        elif order == _ECHO:
            for _ in range(min(count, _BATCH)):
                sock.sendall(receive(sock, _PING_BYTES))
        elif order == _SINK:
            sock.sendall(_SUM.pack(*_drain(sock)))
        elif order == _SOURCE:
            _pour(sock, min(seconds, _MAX_SECONDS))
        elif order == _RDMA:
            _follow_rdma(sock, _TOOLS[count % len(_TOOLS)], rdma)
        elif order == _END:
            return
        else:
            raise HandshakeError(f"unknown order {order}")


def _lead_rdma(sock: socket.socket, rdma: Rdma) -> RdmaMeasured:
    outputs = []
    sock.settimeout(2 * _TOOL_S)
    peer = sock.getpeername()[0]
    for number, tool in enumerate(_TOOLS):
        sock.sendall(_ORDER.pack(_RDMA, number, 0.0))
        (port,) = _PORT.unpack(receive(sock, _PORT.size))
        if port == 0:
            raise PreflightFailed(f"{tool} does not run on the other node")
        outputs.append(
            perftest.call(tool, rdma.device, rdma.ib_port, port, peer, timeout_s=_TOOL_S)
        )
    typical, p99 = perftest.latency_us(outputs[0])
    gbps = perftest.bandwidth_gbps(outputs[1])
    return RdmaMeasured(latency_us=typical, latency_p99_us=p99, gbps=round(gbps, 2))


def _follow_rdma(sock: socket.socket, tool: str, rdma: Rdma | None) -> None:
    if rdma is None:
        sock.sendall(_PORT.pack(0))
        return
    with perftest.waiting(tool, rdma.device, rdma.ib_port, rdma.tcp_port) as listens:
        sock.sendall(_PORT.pack(rdma.tcp_port if listens else 0))
    sock.settimeout(_TOOL_S)


def _round_trips(sock: socket.socket, effort: Effort) -> list[float]:
    trips: list[float] = []
    message = b"x" * _PING_BYTES
    end = time.perf_counter() + effort.rtt_s
    while len(trips) < 2 * _BATCH or (
        len(trips) < effort.pings + _WARM_UP and time.perf_counter() < end
    ):
        sock.sendall(_ORDER.pack(_ECHO, _BATCH, 0.0))
        for _ in range(_BATCH):
            began = time.perf_counter()
            sock.sendall(message)
            receive(sock, _PING_BYTES)
            trips.append(time.perf_counter() - began)
    return trips[_WARM_UP:]


def _pour(sock: socket.socket, seconds: float) -> None:
    """Send blocks for a while, then the mark of the end."""
    block = _FRAME.pack(_BLOCK) + bytes(_BLOCK)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sock.sendall(block)
    sock.sendall(_FRAME.pack(0))


def _drain(sock: socket.socket) -> tuple[int, float]:
    """(bytes, seconds from the first block to the end)."""
    buffer = memoryview(bytearray(_BLOCK))
    total, began = 0, 0.0
    while True:
        (left,) = _FRAME.unpack(receive(sock, _FRAME.size))
        began = began or time.perf_counter()
        if left == 0:
            return total, time.perf_counter() - began
        if left > _BLOCK:
            raise HandshakeError(f"a block of {left} bytes")
        while left:
            got = sock.recv_into(buffer, left)
            if not got:
                raise HandshakeError("the connection ended")
            left -= got
            total += got


def _gbps(size: int, seconds: float) -> float:
    return size * 8 / seconds / 1e9 if seconds > 0 else 0.0
