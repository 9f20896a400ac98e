"""Where a router listens, and the address that it tells others."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator

from exaslurm.core.plan import PortPolicy
from exaslurm.core.ports import RAY_WORKERS_LAST
from exaslurm.errors import UserError

_BACKLOG = 2048
_WILDCARDS = ("0.0.0.0", "::", "")


def listen(bind: str, port: int, policy: PortPolicy) -> socket.socket:
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
        remedy="choose another port (gateway.port, or --port)",
    )


def router_ports(policy: PortPolicy) -> Iterator[int]:
    """Ports for routers: the end of the site's last block, which no cell uses."""
    blocks = max(1, (policy.last - policy.first + 1) // policy.block)
    base = policy.first + (blocks - 1) * policy.block
    first = min(base + RAY_WORKERS_LAST + 1, policy.last)
    yield from range(first, min(base + policy.block - 1, policy.last) + 1)


def is_loopback(bind: str) -> bool:
    if bind == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return False


def advertised_url(bind: str, port: int) -> str:
    """The base URL for clients: the host's name where the router listens on every address."""
    host = socket.gethostname() if bind in _WILDCARDS else bind
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_unless_in_use(bind: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((bind, port))
        # Bursts of thousands of clients must not wait for a second SYN.
        sock.listen(_BACKLOG)
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
