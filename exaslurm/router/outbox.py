"""What one turn of the event loop has to say leaves at its end: to engines, then to clients.

A write wakes the process at the other end if that one waits on this host, and the waking costs
about as much as the rest of the write. A turn reads requests and answers mixed; written as they
come, each wakes an engine or a client that has just gone to sleep after the last one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

# So much does not wait: the loop may read it many times over in one turn, and the one who does not
# read it has to be noticed after the first time.
_LARGE_BYTES: Final = 16 * 1024


class Outbox:
    """What is to be written, for each connection in the order it came. Made inside the event loop.

    Who writes to such a connection directly, or closes it, says ``flush`` before. ``turn``: how
    often everything was written; what came since it was the same still waits.
    """

    __slots__ = ("_loop", "_to_clients", "_to_engines", "_waits", "turn")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._to_engines: list[tuple[asyncio.Transport, bytes]] = []
        self._to_clients: list[tuple[asyncio.Transport, bytes]] = []
        self._waits = False
        self.turn = 0

    def to_engine(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write ``data`` when this turn has read everything, if the connection is open then."""
        self._to_engines.append((transport, data))
        if not self._waits:
            self._waits = True
            self._loop.call_soon(self._turn_ends)

    def to_client(self, transport: asyncio.Transport, data: bytes) -> None:
        """As ``to_engine``, and after that. What is large is written at once."""
        self._to_clients.append((transport, data))
        if len(data) >= _LARGE_BYTES:
            self.flush()
            return
        if not self._waits:
            self._waits = True
            self._loop.call_soon(self._turn_ends)

    def flush(self) -> None:
        """Write everything now."""
        self.turn += 1
        pending, self._to_engines = self._to_engines, []
        _write(pending)
        pending, self._to_clients = self._to_clients, []
        _write(pending)

    def _turn_ends(self) -> None:
        self._waits = False
        self.flush()


def _write(pending: list[tuple[asyncio.Transport, bytes]]) -> None:
    for transport, data in pending:
        if transport.is_closing():
            continue
        try:
            transport.write(data)
        except Exception:  # the others are still to be written
            log.exception("a connection could not be written to")
            transport.abort()
