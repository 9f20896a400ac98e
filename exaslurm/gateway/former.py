"""The helper that served while this process started again: its child, from before it became the
program that it is now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from exaslurm.errors import ExaslurmError
from exaslurm.gateway.follow import Step

log = logging.getLogger(__name__)

_AGAIN_S = 1.0

Read = TypeVar("Read")


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

    def keep_trying(self, read: Callable[[], Read], over: Step | None = None) -> Read | None:
        """What ``read`` returns. As long as that is an ExaslurmError it is tried again every
        second, while the helper serves; that error if the helper ends. None if it shall end, by
        SIGTERM, SIGINT or ``over``, once the helper has finished what was begun."""
        try:
            return read()
        except ExaslurmError as error:
            return asyncio.run(self._try_again(read, over, error))

    async def _try_again(
        self, read: Callable[[], Read], over: Step | None, error: ExaslurmError
    ) -> Read | None:
        asked = asyncio.Event()

        def end(reason: str) -> None:
            log.info("ending when the helper has finished: %s", reason)
            self.tell("now" if asked.is_set() else "stop")
            asked.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number.name)
        said = ""
        while not self.ended:
            if str(error) != said:
                said = str(error)
                log.error("cannot serve again yet, the helper goes on: %s", error)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asked.wait(), _AGAIN_S)
            if over is not None and not asked.is_set():
                with contextlib.suppress(ExaslurmError, OSError):
                    if reason := over():
                        end(reason)
            if asked.is_set():
                await self._wait()
                return None
            try:
                return read()
            except ExaslurmError as newer:
                error = newer
        raise error

    async def _wait(self) -> None:
        """Until it has ended."""
        while not self.ended:
            await asyncio.to_thread(self._ended.wait, _AGAIN_S)

    async def end(self, *, timeout_s: float) -> None:
        """Have it finish what is begun; end it if that takes too long."""
        self.tell("stop")
        if not await asyncio.to_thread(self._ended.wait, timeout_s):
            log.warning("the helper (process %d) does not end: killing it", self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
