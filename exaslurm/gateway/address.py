"""The address that a router tells others."""

from __future__ import annotations

import socket

_WILDCARDS = ("0.0.0.0", "::", "")


def advertised_url(bind: str, port: int, *, tls: bool = False) -> str:
    """The base URL for clients: the host's name where the router listens on every address."""
    scheme = "https" if tls else "http"
    host = socket.gethostname() if bind in _WILDCARDS else bind
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
