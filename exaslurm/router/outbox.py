"""Whole answers of one turn of the event loop leave together, after the requests of that turn.

A write wakes the process at the other end if that one waits on this host, and the waking costs
about as much as the rest of the write. A turn reads requests and answers mixed; written in that
order, they wake engines and clients in turns. uvloop writes what a turn wrote at its end, and what
is written by ``call_soon`` after that.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Sender(Protocol):
    """A client's connection that keeps an answer."""

    def send_kept(self) -> None:
        """Send what is kept, if it is still there."""


class Outbox:
    """Who has something to send. Made inside the event loop."""

    __slots__ = ("_loop", "_senders")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._senders: list[Sender] = []

    def add(self, sender: Sender) -> None:
        """Have it called when this turn of the loop has read everything."""
        if not self._senders:
            self._loop.call_soon(self._send)
        self._senders.append(sender)

    def _send(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.send_kept()
