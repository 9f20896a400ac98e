"""Measurements between nodes, with real sockets on loopback addresses."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exaslurm.fabric.handshake import (
    CHECK,
    MEASURE,
    HandshakeError,
    Hello,
    answer,
    call,
    receive,
    welcome,
)
from exaslurm.fabric.measure import Effort, Rdma
from exaslurm.fabric.perftest import RdmaMeasured
from exaslurm.fabric.probe import NodeResult, Peer, Probe
from tests.fabric.test_perftest import BW, LAT

KEY = b"k" * 32
QUICK = Effort(rtt_s=0.02, pings=100, stream_s=0.03, step_s=2.0, turn_s=10.0)


@contextlib.contextmanager
def listening(
    count: int, keys: Sequence[bytes] = (), rdma: Sequence[Rdma | None] = ()
) -> Iterator[list[Probe]]:
    """Probes on 127.0.0.1, 127.0.0.2, ..."""
    probes = [
        Probe(
            f"127.0.0.{n + 1}",
            keys[n] if n < len(keys) else KEY,
            rdma=rdma[n] if n < len(rdma) else None,
        )
        for n in range(count)
    ]
    try:
        yield probes
    finally:
        for probe in probes:
            probe.close()


def peers_of(probes: Sequence[Probe]) -> list[Peer]:
    return [
        Peer(name=f"n{n}", address=f"127.0.0.{n + 1}", port=probe.port)
        for n, probe in enumerate(probes)
    ]


def run(
    probes: Sequence[Probe], peers: Sequence[Peer], ranks: Sequence[int], roll_call_s: float
) -> list[NodeResult]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        jobs = [
            pool.submit(probes[n].run, peers, n, roll_call_s=roll_call_s, effort=QUICK)
            for n in ranks
        ]
        return [job.result(timeout=60) for job in jobs]


def test_all_pairs_of_five_nodes() -> None:
    with listening(5) as probes:
        results = run(probes, peers_of(probes), range(5), 10.0)
    pairs = {(result.node, pair.peer): pair for result in results for pair in result.pairs}
    assert sorted(pairs) == [(f"n{a}", f"n{b}") for a in range(5) for b in range(a + 1, 5)]
    for pair in pairs.values():
        assert pair.error is None
        assert pair.measured is not None
        # Loopback: more than nothing, and less than what would be no measurement at all.
        assert 1 < pair.measured.rtt_us < 100_000
        assert pair.measured.rtt_us <= pair.measured.rtt_p99_us
        assert 0.01 < pair.measured.gbps_out < 10_000
        assert 0.01 < pair.measured.gbps_in < 10_000
    assert {result.unreachable for result in results} == {()}


def test_nodes_that_start_later_are_waited_for() -> None:
    with listening(2) as probes:
        peers = peers_of(probes)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(probes[0].run, peers, 0, roll_call_s=10.0, effort=QUICK)
            # The second one is asked to take part only once the first one has called it.
            deadline = time.monotonic() + 5
            while not probes[1]._arrivals.measure:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            second = pool.submit(probes[1].run, peers, 1, roll_call_s=10.0, effort=QUICK)
            assert first.result(timeout=20).pairs[0].measured is not None
            assert second.result(timeout=20).unreachable == ()


def test_a_dead_node_costs_the_others_the_roll_call_only() -> None:
    with listening(3) as probes:
        peers = peers_of(probes)
        with socket.create_server(("127.0.0.4", 0)) as gone:
            port = gone.getsockname()[1]  # nobody listens there any more
        peers.append(Peer(name="n3", address="127.0.0.4", port=port))
        began = time.monotonic()
        results = run(probes, peers, range(3), 1.0)
        assert time.monotonic() - began < 8
    for result in results:
        assert result.unreachable == (("n3", "Connection refused"),)
        errors = {pair.peer: pair.error for pair in result.pairs}
        assert errors.pop("n3") == "no connection"
        assert set(errors.values()) <= {None}


def test_a_stranger_is_neither_measured_nor_believed() -> None:
    with listening(2, keys=[KEY, b"another key"]) as probes:
        results = run(probes, peers_of(probes), range(2), 0.8)
    # Whichever side finds out first ends the connection.
    assert [name for name, _ in results[0].unreachable] == ["n1"]
    assert results[0].unreachable[0][1] == "the other end does not know the key"
    assert [name for name, _ in results[1].unreachable] == ["n0"]
    assert results[0].pairs[0].measured is None


def test_noise_on_the_port_does_no_harm() -> None:
    with listening(2) as probes:
        peers = peers_of(probes)
        with socket.create_connection(("127.0.0.1", probes[0].port), timeout=5) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            results = run(probes, peers, range(2), 5.0)
            noise.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert noise.recv(100) == b""
    assert results[0].pairs[0].measured is not None


def test_a_partner_that_dies_while_measuring() -> None:
    """It leaves right after the roll call; its partner says so and does not wait."""
    with listening(2) as probes:
        peers = peers_of(probes)

        def leave() -> None:
            deadline = time.monotonic() + 5
            while 0 not in probes[1]._arrivals.measure and time.monotonic() < deadline:
                time.sleep(0.005)
            probes[1].close()

        thread = threading.Thread(target=leave)
        thread.start()
        began = time.monotonic()
        result = probes[0].run(peers, 0, roll_call_s=5.0, effort=QUICK)
        thread.join()
    assert time.monotonic() - began < 5
    assert result.pairs[0].measured is None
    assert result.pairs[0].error


def shake(client_key: bytes, server_key: bytes, hello: Hello) -> Hello:
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    theirs.settimeout(5)
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        server = pool.submit(answer, theirs, server_key)
        thread = threading.Thread(target=lambda: _swallow(ours, client_key, hello))
        thread.start()
        try:
            found = server.result(timeout=5)
            welcome(theirs)
        finally:
            thread.join(5)
        return found


def _swallow(sock: socket.socket, key: bytes, hello: Hello) -> None:
    with contextlib.suppress(OSError):
        call(sock, key, hello)
    sock.close()


@pytest.mark.parametrize("kind", [CHECK, MEASURE])
def test_both_ends_know_each_other(kind: int) -> None:
    assert shake(KEY, KEY, Hello(513, kind)) == Hello(513, kind)


def test_a_caller_without_the_key_is_refused() -> None:
    """It hangs up itself if it checks the answer; one that does not is found out."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        theirs.settimeout(5)
        server = pool.submit(answer, theirs, KEY)
        ours.sendall(b"XFP1" + bytes(16) + b"\x00\x01\x01")
        receive(ours, 48)
        ours.sendall(bytes(32))
        with pytest.raises(HandshakeError, match="the caller does not know the key"):
            server.result(timeout=5)


def test_a_proof_cannot_be_used_again() -> None:
    recorded = b""
    for attempt in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as pool:
            theirs.settimeout(5)
            server = pool.submit(answer, theirs, KEY)
            if attempt == 0:
                sent = _Recorder(ours)
                caller = threading.Thread(target=_swallow, args=(sent, KEY, Hello(1, CHECK)))
                caller.start()
                assert server.result(timeout=5) == Hello(1, CHECK)
                welcome(theirs)
                caller.join(5)
                recorded = sent.data
            else:
                ours.sendall(recorded)
                with pytest.raises(HandshakeError, match="does not know the key"):
                    server.result(timeout=5)


class _Recorder:
    """A socket that remembers what it sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.data = b""

    def sendall(self, data: bytes) -> None:
        self.data += data
        self._sock.sendall(data)

    def recv(self, size: int) -> bytes:
        return self._sock.recv(size)

    def close(self) -> None:
        pass


STAND_IN = """#!{python}
import socket, sys
words = sys.argv[1:]
port = int(words[words.index("--port") + 1])
if words[-1].startswith("-"):
    server = socket.create_server(("", port))
    sock, _ = server.accept()
    sock.sendall(b"x")
else:
    sock = socket.create_connection((words[-1], port), timeout=5)
    assert sock.recv(1) == b"x"
    print(open(sys.argv[0] + ".txt").read())
"""


def test_the_hardwares_own_tools_by_order_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for both tools that meet as the real ones do."""
    for name, output in (("ib_write_lat", LAT), ("ib_write_bw", BW)):
        path = tmp_path / name
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(0o755)
        path.with_name(f"{name}.txt").write_text(output)
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    rdma = Rdma(device="mlx5_0", ib_port=1, tcp_port=port)
    with listening(3, rdma=[rdma, rdma, None]) as probes:
        results = run(probes, peers_of(probes), range(3), 10.0)
    one, two = (pair.measured for pair in results[0].pairs)
    assert one is not None
    assert one.rdma == RdmaMeasured(latency_us=1.05, latency_p99_us=1.19, gbps=197.21)
    assert two is not None
    assert two.rdma is None
    assert two.rdma_error == "ib_write_lat does not run on the other node"
    assert two.gbps_in > 0  # the rest is not lost
