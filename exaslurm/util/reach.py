"""A connection to one of our own routers: plain, with a known certificate, or by a unix socket.
Never through a site's web proxy: routers are in the same cluster."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import urlsplit

from exaslurm.util.loopback import is_loopback


def connect(url: str, *, certificate: str = "", timeout_s: float) -> http.client.HTTPConnection:
    """A connection to the router at ``url`` (``http://``, ``https://`` or ``unix:/path``), not
    opened yet.

    ``certificate`` (PEM) is the one that the router shows, as it has told in a private file: then
    that very one is accepted and no other, whoever issued it. Without it the system's authorities
    count (or ``$SSL_CERT_FILE``). ValueError if it is no such address.
    """
    if url.startswith("unix:"):
        return _UnixConnection(url.removeprefix("unix:"), timeout_s)
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if host is None or parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is no address of a router")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
    context = only_this(certificate) if certificate else ssl.create_default_context()
    return http.client.HTTPSConnection(host, port or 443, timeout=timeout_s, context=context)


def is_reached(url: str, host: str, here: str) -> bool:
    """Whether the router at ``url``, which runs on ``host``, is what answers there for a process on
    ``here``: on another host, somebody else may listen at the same loopback address or socket."""
    return host == here or not (
        url.startswith("unix:") or is_loopback(urlsplit(url).hostname or "")
    )


def only_this(certificate: str) -> ssl.SSLContext:
    """TLS with whoever shows that certificate (PEM), and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Whoever can prove to be that certificate's owner is the router, by whatever name it is met.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise
