"""One node's part of a measurement between all pairs of nodes, with the standard library alone.

First a roll call: every node calls every other one, which shows for each direction whether it is
open. The connections from the lower rank to the higher one are kept, and measured on in rounds in
which each node has one partner at most.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from exaslurm.fabric.handshake import CHECK, MEASURE, Hello, answer, call, welcome
from exaslurm.fabric.measure import Effort, Measured, Rdma, follow, lead
from exaslurm.fabric.rounds import partners

_HANDSHAKE_S = 5.0
_RETRY_S = 0.1
# A node that does not answer keeps one busy to the end of the roll call.
_CALLS_AT_ONCE = 256
MAX_NODES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A node that takes part, and where it listens."""

    name: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """What the lower rank measured with a higher one, or why it could not."""

    peer: str
    measured: Measured | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """What one node saw. ``unreachable`` are (node, reason) that it could not call."""

    node: str
    rank: int
    address: str
    pairs: tuple[PairResult, ...]
    unreachable: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Arrivals:
    """Connections that others made to us; ``changed`` is told of each."""

    measure: dict[int, socket.socket] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


class Probe:
    """Listens from the start on, so that peers may be told of ``port``; ``run`` does the rest."""

    def __init__(
        self, address: str, key: bytes, *, port: int = 0, rdma: Rdma | None = None
    ) -> None:
        self._key = key
        self._rdma = rdma
        self._address = address
        self._arrivals = _Arrivals()
        self._listener = socket.create_server((address, port), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._door = threading.Thread(target=self._open_door, name="door", daemon=True)
        self._door.start()

    def run(
        self, peers: Sequence[Peer], rank: int, *, roll_call_s: float, effort: Effort | None = None
    ) -> NodeResult:
        """Call everybody, then measure. Nodes that do not answer within ``roll_call_s`` are left
        out; all in all this takes no longer than that, and ``Effort`` for each of the rounds."""
        if len(peers) > MAX_NODES:
            raise ValueError(f"{len(peers)} nodes are more than {MAX_NODES}")
        effort = effort or Effort()
        deadline = time.monotonic() + roll_call_s
        ours, unreachable = self._call_all(peers, rank, deadline)
        self._wait_for_callers(range(rank), deadline)
        pairs = []
        for partner in partners(len(peers), rank):
            if partner is None:
                continue
            if partner > rank:
                pairs.append(self._measure(peers[partner].name, ours.get(partner), effort))
                continue
            with self._arrivals.changed:
                theirs = self._arrivals.measure.get(partner)
            if theirs is not None:
                with contextlib.suppress(OSError), theirs:
                    follow(theirs, effort, self._rdma)
        for sock in ours.values():
            sock.close()
        return NodeResult(
            node=peers[rank].name,
            rank=rank,
            address=self._address,
            pairs=tuple(sorted(pairs, key=lambda pair: pair.peer)),
            unreachable=tuple(sorted((peers[n].name, why) for n, why in unreachable.items())),
        )

    def close(self) -> None:
        """Stop listening and drop every connection."""
        # A blocked accept() only wakes up for shutdown(), not for close().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._door.join(_HANDSHAKE_S)
        with self._arrivals.changed:
            for sock in self._arrivals.measure.values():
                sock.close()

    def _open_door(self) -> None:
        guests = threading.BoundedSemaphore(2 * _CALLS_AT_ONCE)
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    time.sleep(_RETRY_S)  # someone else's connection has to end first
                    continue
                return
            if not guests.acquire(blocking=False):
                sock.close()  # the caller tries again
                continue
            threading.Thread(target=self._receive, args=(sock, guests), daemon=True).start()

    def _receive(self, sock: socket.socket, guests: threading.BoundedSemaphore) -> None:
        keep = False
        try:
            _prepare(sock, _HANDSHAKE_S)
            hello = answer(sock, self._key)
            if hello.kind == MEASURE:
                with self._arrivals.changed:
                    earlier = self._arrivals.measure.pop(hello.rank, None)
                    self._arrivals.measure[hello.rank] = sock
                    self._arrivals.changed.notify_all()
                keep = True
                if earlier is not None:
                    earlier.close()
            welcome(sock)
        except OSError:
            pass  # not one of us, or it has gone: it sees that itself
        finally:
            guests.release()
            if not keep:
                sock.close()

    def _call_all(
        self, peers: Sequence[Peer], rank: int, deadline: float
    ) -> tuple[dict[int, socket.socket], dict[int, str]]:
        reached: dict[int, socket.socket] = {}
        failed: dict[int, str] = {}

        def one(other: int) -> None:
            kind = MEASURE if other > rank else CHECK
            try:
                sock = self._call(peers[other], Hello(rank, kind), deadline)
            except OSError as error:
                failed[other] = _reason(error)
                return
            if kind == MEASURE:
                reached[other] = sock
            else:
                sock.close()

        with ThreadPoolExecutor(max_workers=_CALLS_AT_ONCE) as pool:
            list(pool.map(one, [other for other in range(len(peers)) if other != rank]))
        return reached, failed

    def _call(self, peer: Peer, hello: Hello, deadline: float) -> socket.socket:
        """A connection that was welcomed; tried again until the deadline, since nodes do not start
        at the same moment. Raises what went wrong last."""
        while True:
            left_s = max(0.05, deadline - time.monotonic())
            sock = None
            try:
                sock = socket.create_connection(
                    (peer.address, peer.port),
                    timeout=min(left_s, _HANDSHAKE_S),
                    # From our own side of this network, whatever the routes say.
                    source_address=(self._address, 0),
                )
                _prepare(sock, min(left_s, _HANDSHAKE_S))
                call(sock, self._key, hello)
            except OSError:
                if sock is not None:
                    sock.close()
                if time.monotonic() + _RETRY_S >= deadline:
                    raise
                time.sleep(_RETRY_S)
            else:
                return sock

    def _measure(self, peer: str, sock: socket.socket | None, effort: Effort) -> PairResult:
        if sock is None:
            return PairResult(peer=peer, error="no connection")
        try:
            return PairResult(peer=peer, measured=lead(sock, effort, self._rdma))
        except OSError as error:
            return PairResult(peer=peer, error=_reason(error))

    def _wait_for_callers(self, ranks: Sequence[int], deadline: float) -> None:
        arrivals = self._arrivals
        with arrivals.changed:
            arrivals.changed.wait_for(
                lambda: all(rank in arrivals.measure for rank in ranks),
                timeout=max(0.0, deadline - time.monotonic()),
            )


def _prepare(sock: socket.socket, timeout_s: float) -> None:
    sock.settimeout(timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return os.strerror(error.errno) if error.errno else str(error)
