"""Round trips and clocks between nodes over plain TCP, with nothing but Python on either side.

Nodes find each other through small files in a directory that all of them see. Each one measures to
the next two in the list, so that the work per node does not grow with their number and every node
is measured from two others.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from exaslurm.core.checks import PeerMeasure
from exaslurm.preflight.host import Host

NEIGHBOURS = 2
ROUNDS = 30
CONNECT_S = 4.0
# Tasks of a step start within seconds of each other.
MEET_S = 45.0
_WAIT_S = 0.1
_QUESTION = b"exaslurm"
_CLOCK = struct.Struct("!d")


class Echo:
    """Answers each question with this host's clock (Unix seconds) until it is closed."""

    def __init__(self, host: Host, address: str, ports: Iterable[int]) -> None:
        self._host = host
        self._listener = _listen(address, ports)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """No more answers."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(CONNECT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(len(_QUESTION)) == _QUESTION:
                connection.sendall(_CLOCK.pack(self._host.clock()))


def _listen(address: str, ports: Iterable[int]) -> socket.socket:
    problem: OSError | None = None
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(16)
        except OSError as error:
            listener.close()
            problem = error
            continue
        return listener
    raise problem or OSError("no port to listen on")


def measure(host: Host, peer: str, address: str, port: int) -> PeerMeasure:
    """Round trips to one node, the median of them, and its clock by the fastest."""
    place = f"{address}:{port}"
    try:
        with socket.create_connection((address, port), timeout=CONNECT_S) as connection:
            connection.settimeout(CONNECT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = [_round(host, connection) for _ in range(ROUNDS)]
    except TimeoutError:
        return PeerMeasure(peer=peer, address=place, error=f"no answer in {CONNECT_S:g} s")
    except OSError as error:
        return PeerMeasure(peer=peer, address=place, error=error.strerror or str(error))
    fastest = min(trips)
    return PeerMeasure(
        peer=peer,
        address=place,
        rtt_us=round(statistics.median(took_s for took_s, _ in trips) * 1e6, 1),
        ahead_s=round(fastest[1], 6),
    )


def _round(host: Host, connection: socket.socket) -> tuple[float, float]:
    """Seconds of one round trip, and how far the other clock is ahead."""
    begin_s, clock_s = host.timer(), host.clock()
    connection.sendall(_QUESTION)
    answer = b""
    while len(answer) < _CLOCK.size:
        part = connection.recv(_CLOCK.size - len(answer))
        if not part:
            raise ConnectionResetError("the connection was closed")
        answer += part
    took_s = host.timer() - begin_s
    return took_s, _CLOCK.unpack(answer)[0] - (clock_s + took_s / 2)


def meet(
    host: Host, names: Sequence[str], place: Path, address: str, ports: Iterable[int]
) -> tuple[PeerMeasure, ...]:
    """Listen, find the next two of ``names`` (this host is one of them), measure, and stay until
    those who measure to this one are done. ``place`` is a directory that all of them see."""
    echo = Echo(host, address, ports)
    try:
        _note(place / f"{host.name}.address", f"{address} {echo.port}")
        index = list(names).index(host.name)
        count = min(NEIGHBOURS, len(names) - 1)
        next_ones = [names[(index + step) % len(names)] for step in range(1, count + 1)]
        deadline_s = host.timer() + MEET_S
        found = _measured(host, next_ones, place, deadline_s)
        _note(place / f"{host.name}.done", "")
        deadline_s += NEIGHBOURS * CONNECT_S  # those who waited as long as this one
        for step in range(1, count + 1):
            done = place / f"{names[(index - step) % len(names)]}.done"
            _await(host, done, deadline_s)
        return found
    finally:
        echo.close()


def _measured(
    host: Host, peers: Sequence[str], place: Path, deadline_s: float
) -> tuple[PeerMeasure, ...]:
    """Measure to each as soon as it is there: none waits for one that does not come."""
    absent = f"it did not come within {MEET_S:g} s"
    found = {peer: PeerMeasure(peer=peer, address="?", error=absent) for peer in peers}
    waiting = list(peers)
    while waiting and host.timer() < deadline_s:
        for peer in list(waiting):
            text = _await(host, place / f"{peer}.address", host.timer() + _WAIT_S)
            if text is not None:
                address, port = text.split()
                found[peer] = measure(host, peer, address, int(port))
                waiting.remove(peer)
    return tuple(found.values())


def _note(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


def _await(host: Host, path: Path, deadline_s: float) -> str | None:
    """The content of a file, as soon as it is there; None if it does not come."""
    pause = threading.Event()
    while True:
        with contextlib.suppress(OSError):
            return path.read_text()
        if host.timer() >= deadline_s:
            return None
        pause.wait(_WAIT_S)
