"""The address that a router tells others."""

from __future__ import annotations

import ipaddress
import socket

_WILDCARDS = ("0.0.0.0", "::", "")


def is_loopback(bind: str) -> bool:
    if bind == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return False


def advertised_url(bind: str, port: int, *, tls: bool = False) -> str:
    """The base URL for clients: the host's name where the router listens on every address."""
    scheme = "https" if tls else "http"
    host = socket.gethostname() if bind in _WILDCARDS else bind
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
