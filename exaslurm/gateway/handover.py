"""Sockets from a router that runs to the one that takes its place, over a private unix socket.

The old router sends copies of its listening sockets (SCM_RIGHTS) to whoever connects, and goes on.
The new one starts to serve on them and says so; only then does the old one take nothing new,
finish what it has, and end. If the new one fails before that, nothing has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exaslurm.errors import StateError, UserError
from exaslurm.gateway.listeners import Listeners, inode_of, listen_unix, remove_unix
from exaslurm.util.hostdir import host_dir, host_name_of
from exaslurm.util.process import start_ticks

log = logging.getLogger(__name__)

_SCHEMA = "exaslurm/handover/1"
_MAX_BYTES = 4096
_MAX_FDS = 128
_TIMEOUT_S = 10.0
_READY = b"ready\n"
_LEAVING = b"leaving\n"


def _prefix(identity: str) -> str:
    """Routers of one host that may take over from each other have sockets of this name."""
    return f"router-{host_name_of(socket.gethostname(), identity)}-"


class Offer:
    """The old router's side: offers ``listeners`` to routers of the same ``identity`` and user.

    ``leave`` is awaited when one of them serves on them; what it returns is waited for before
    that one is told.
    """

    def __init__(
        self, identity: str, bind: str, listeners: Listeners, leave: Callable[[], Awaitable[None]]
    ) -> None:
        self._listeners = listeners
        self._leave = leave
        pid = os.getpid()
        self._path = host_dir() / f"{_prefix(identity)}{pid}-{start_ticks(pid)}"
        self._about = {
            "schema": _SCHEMA,
            "pid": pid,
            "bind": bind,
            "port": listeners.port,
            "tcp": len(listeners.tcp),
            "uds": os.fspath(listeners.uds) if listeners.uds is not None else None,
        }
        self._taken = False

    async def run(self) -> None:
        """Until cancelled. StateError if the private socket cannot be made."""
        loop = asyncio.get_running_loop()
        try:
            sock = listen_unix(self._path, 0o600)
        except UserError as error:
            raise StateError(str(error)) from None
        inode = inode_of(self._path)
        sock.setblocking(False)
        guests: set[asyncio.Task[None]] = set()
        try:
            while True:
                connection, _ = await loop.sock_accept(sock)
                guest = asyncio.create_task(self._receive(connection))
                guests.add(guest)
                guest.add_done_callback(guests.discard)
        finally:
            for guest in guests:
                guest.cancel()
            await asyncio.gather(*guests, return_exceptions=True)
            sock.close()
            remove_unix(self._path, inode)

    async def _receive(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._serve(connection)
            except Exception:  # the next one may do better
                log.exception("hand-over")

    async def _serve(self, connection: socket.socket) -> None:
        if _peer_uid(connection) != os.getuid():
            return
        connection.setblocking(False)
        fds = [sock.fileno() for sock in self._listeners.all]
        socket.send_fds(connection, [json.dumps(self._about).encode() + b"\n"], fds)
        loop = asyncio.get_running_loop()
        # As long as the new one needs to start, or to give up.
        if await loop.sock_recv(connection, len(_READY)) != _READY or self._taken:
            return
        self._taken = True
        await self._leave()
        await loop.sock_sendall(connection, _LEAVING)


@dataclass(slots=True)
class Predecessor:
    """The new router's side: what it got, and from whom."""

    pid: int
    listeners: Listeners
    connection: socket.socket

    def release(self) -> None:
        """Tell it that its place is taken. StateError if it does not answer; it still serves
        then, on the same sockets."""
        with self.connection:
            try:
                self.connection.sendall(_READY)
                answer = self.connection.recv(len(_LEAVING))
            except OSError as error:
                raise StateError(f"hand-over from process {self.pid}: {error}") from error
        if answer != _LEAVING:
            raise StateError(f"hand-over from process {self.pid}: it does not leave")


def find_predecessor(identity: str, bind: str, port: int) -> Predecessor | None:
    """The router of that identity that listens on ``bind`` (and ``port``, unless 0); None if there
    is none. UserError if there are several."""
    found: list[Predecessor] = []
    ports: list[int] = []
    for path in sorted(host_dir().glob(_prefix(identity) + "*")):
        offered = _ask(path)
        if offered is None:
            continue
        about, candidate = offered
        if about["bind"] == bind and port in (0, about["port"]):
            found.append(candidate)
            ports.append(about["port"])
        else:
            _drop(candidate)
    if len(found) <= 1:
        return found[0] if found else None
    for candidate in found:
        _drop(candidate)
    raise UserError(
        f"{len(found)} routers could be replaced (ports {', '.join(map(str, sorted(ports)))})",
        remedy="name one of them by --port",
    )


def _ask(path: Path) -> tuple[dict[str, Any], Predecessor] | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT_S)
    try:
        connection.connect(os.fspath(path))
        raw, fds, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_FDS)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        about = json.loads(raw)
        if about["schema"] != _SCHEMA or len(sockets) != about["tcp"] + bool(about["uds"]):
            raise ValueError("of another version")
        tcp, rest = sockets[: about["tcp"]], sockets[about["tcp"] :]
        listeners = Listeners(tcp, rest[0] if rest else None)
        return about, Predecessor(int(about["pid"]), listeners, connection)
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError):
            with contextlib.suppress(OSError):
                path.unlink()  # left by a router that was killed
        else:
            log.warning("%s: no hand-over from there: %s", path, error)
        return None


def _drop(candidate: Predecessor) -> None:
    candidate.listeners.close()
    candidate.connection.close()


def _peer_uid(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", raw)[1])
