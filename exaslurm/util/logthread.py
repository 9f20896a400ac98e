"""Logging that cannot block: lines are written by a thread of their own.

A log on a shared file system hangs when the file system does; the process that writes it must
not.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading

_DATE = "%Y-%m-%dT%H:%M:%S"


class LogThread:
    """Everything that is logged goes to stderr through a thread."""

    def __init__(self, name: str) -> None:
        self._lines: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._stream = logging.StreamHandler(sys.stderr)
        self._stream.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s", _DATE))
        entry = logging.handlers.QueueHandler(self._lines)
        entry.setFormatter(logging.Formatter())  # it formats too: the bare message
        logging.basicConfig(level=logging.INFO, handlers=[entry])
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Give the thread a moment to write what there is. Leave with ``os._exit`` then: at a
        normal exit ``logging`` waits for a stream that hangs."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._stream.handle(record)
