"""The sockets that a router listens on, and how they go from one process to another.

On TCP each worker has a socket of its own, all on one port (SO_REUSEPORT): the kernel spreads
connections evenly, where workers that share one socket take them by luck, up to all of a burst by
one of them. Whoever starts the workers keeps every socket open, too: connections that wait for a
worker that died are not lost but wait for the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from exaslurm.core.plan import PortPolicy
from exaslurm.core.ports import RAY_WORKERS_LAST
from exaslurm.errors import UserError

# Bursts of thousands of clients must not wait for a second SYN.
BACKLOG = 4096
_MAX_SOCKET_PATH_BYTES = 107
_PROBE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class Listeners:
    """Listening sockets: those of TCP, all on one port, and at most one unix socket."""

    tcp: list[socket.socket] = field(default_factory=list)
    unix: socket.socket | None = None

    @property
    def all(self) -> list[socket.socket]:
        return [*self.tcp, self.unix] if self.unix is not None else list(self.tcp)

    @property
    def port(self) -> int:
        """The TCP port, 0 if there is none."""
        return int(self.tcp[0].getsockname()[1]) if self.tcp else 0

    @property
    def uds(self) -> Path | None:
        return Path(self.unix.getsockname()) if self.unix is not None else None

    def widen(self, count: int) -> None:
        """Have at least ``count`` TCP sockets on the port, if there is one."""
        while self.tcp and len(self.tcp) < count:
            first = self.tcp[0]
            sock = _tcp_socket(first.family)
            self.tcp.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(first.getsockname())
            sock.listen(BACKLOG)

    def share(self, index: int, count: int) -> Listeners:
        """What worker ``index`` of ``count`` listens on. None of them is left out, though there
        may be more than workers, after a hand-over: clients wait at each."""
        return Listeners(self.tcp[index::count], self.unix)

    def copies(self) -> Listeners:
        """The same sockets once more, for somebody who will close them."""
        return Listeners(
            [sock.dup() for sock in self.tcp], self.unix.dup() if self.unix is not None else None
        )

    def close(self) -> None:
        for sock in self.all:
            sock.close()

    def to_text(self) -> str:
        """Their descriptors, for the command line of a process that inherits them."""
        fds = ",".join(str(sock.fileno()) for sock in self.tcp)
        return f"{fds};{self.unix.fileno() if self.unix is not None else ''}"

    @classmethod
    def of_text(cls, text: str) -> Listeners:
        """The sockets that were inherited so; nobody inherits them further."""
        tcp, _, unix = text.partition(";")
        listeners = cls(
            [socket.socket(fileno=int(fd)) for fd in tcp.split(",") if fd],
            socket.socket(fileno=int(unix)) if unix else None,
        )
        for sock in listeners.all:
            sock.set_inheritable(False)
        return listeners


def listen_tcp(bind: str, port: int, policy: PortPolicy) -> socket.socket:
    """A listening socket on ``bind``; ``port`` 0 takes the first free one for routers.

    UserError if there is none.
    """
    tried = [port] if port else list(router_ports(policy))
    for candidate in tried:
        sock = _bind_unless_in_use(bind, candidate)
        if sock is not None:
            return sock
    ports = str(port) if port else f"{tried[0]}-{tried[-1]}"
    raise UserError(
        f"cannot listen on {bind}: port {ports} is in use",
        remedy="choose another port (gateway.port, or --port); --replace takes over from the "
        "same deployment's router",
    )


def router_ports(policy: PortPolicy) -> Iterator[int]:
    """Ports for routers: the end of the site's last block, which no cell uses."""
    blocks = max(1, (policy.last - policy.first + 1) // policy.block)
    base = policy.first + (blocks - 1) * policy.block
    first = min(base + RAY_WORKERS_LAST + 1, policy.last)
    yield from range(first, min(base + policy.block - 1, policy.last) + 1)


def listen_unix(path: Path, mode: int) -> socket.socket:
    """A listening unix socket of that mode. One that nobody listens on any more is replaced.

    UserError if there is another file, or if somebody listens.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise UserError(
            f"{path}: longer than a socket's path may be",
            remedy=f"use at most {_MAX_SOCKET_PATH_BYTES} bytes, such as /run/user/UID/NAME",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _require_unused(path)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        before = os.umask(0o777 & ~mode)  # so that it has its mode from the first moment
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"cannot listen on {path}: {reason}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _require_unused(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"{path} is there, and is no socket", remedy="choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # its process is gone
        except OSError as error:
            raise UserError(f"{path} is in use, or cannot be used: {error.strerror}") from error
    raise UserError(
        f"another process listens on {path}",
        remedy="choose another path; --replace takes over from the same deployment's router",
    )


def remove_unix(path: Path, inode: tuple[int, int]) -> None:
    """Remove a socket's file if it is still that one."""
    with contextlib.suppress(OSError):
        if inode_of(path) == inode:
            path.unlink()


def inode_of(path: Path) -> tuple[int, int]:
    info = path.lstat()
    return info.st_dev, info.st_ino


def inheritable(sockets: Iterable[socket.socket]) -> None:
    """Let the next program that this process becomes have them."""
    for sock in sockets:
        sock.set_inheritable(True)


def _tcp_socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def _bind_unless_in_use(bind: str, port: int) -> socket.socket | None:
    sock = _tcp_socket(socket.AF_INET6 if ":" in bind else socket.AF_INET)
    try:
        sock.bind((bind, port))
        # Only now: before, it would join the port of another router instead of finding it in use.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(
            f"cannot listen on {bind}:{port}: {reason}",
            remedy="check gateway.bind and gateway.port",
        ) from error
    return sock
