"""The time of a round trip to another host, without any program on the other side."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time

TRIPS = 5
_TIMEOUT_S = 1.0


def rtt_us(host: str, port: int, *, source: str = "", trips: int = TRIPS) -> float | None:
    """Median of the microseconds that a TCP connection takes to be made, from the address
    ``source``; None if the host gives no answer. A refused connection was answered too, so
    nothing needs to listen there."""
    times = []
    for _ in range(trips):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(_TIMEOUT_S)
            try:
                sock.bind((source, 0))
                address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
                began = time.perf_counter()
                with contextlib.suppress(ConnectionRefusedError):
                    sock.connect(address)
                times.append(time.perf_counter() - began)
            except OSError:
                return None
    return round(statistics.median(times) * 1e6, 1)
