"""The helper that served while this process started again: its child, from before it became the
program that it is now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading

log = logging.getLogger(__name__)


class Former:
    """``text``: pid and descriptor of the line to it, as of ``--helper``."""

    def __init__(self, text: str) -> None:
        pid, _, fd = text.partition(":")
        self._pid = int(pid)
        self._fd = int(fd)
        os.set_inheritable(self._fd, False)
        self._ended = threading.Event()
        threading.Thread(target=self._reap, name="helper", daemon=True).start()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # it had ended before
            os.waitpid(self._pid, 0)
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def tell(self, word: str) -> None:
        """``leave``, ``stop`` or ``now``. One that is gone hears nothing."""
        with contextlib.suppress(OSError):
            os.write(self._fd, word.encode() + b"\n")

    async def end(self, *, timeout_s: float) -> None:
        """Have it finish what is begun; end it if that takes too long."""
        self.tell("stop")
        if not await asyncio.to_thread(self._ended.wait, timeout_s):
            log.warning("the helper (process %d) does not end: killing it", self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
