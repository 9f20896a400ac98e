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


class Child:
    """One helper: its pid, and the descriptor of the line to it."""

    def __init__(self, text: str) -> None:
        pid, _, fd = text.partition(":")
        self.text = text
        self.pid = int(pid)
        self.fd = int(fd)
        os.set_inheritable(self.fd, False)
        self.ended = threading.Event()
        threading.Thread(target=self._reap, name="helper", daemon=True).start()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # it had ended before
            os.waitpid(self.pid, 0)
        self.ended.set()


class Former:
    """``text``: as of ``--helper``, each helper's pid and descriptor. The first has served until
    now; others, of earlier restarts, still finish what was begun."""

    def __init__(self, text: str) -> None:
        self._all = [Child(item) for item in text.split(",")]

    @property
    def ended(self) -> bool:
        """Whether the one that has served until now does so no more."""
        return self._all[0].ended.is_set()

    def keep(self) -> list[str]:
        """Those that are left, for the next program that this process becomes."""
        left = [child for child in self._all if not child.ended.is_set()]
        for child in left:
            os.set_inheritable(child.fd, True)
        return [child.text for child in left]

    def tell(self, word: str) -> None:
        """``leave``, ``stop`` or ``now``. One that is gone hears nothing."""
        for child in self._all:
            with contextlib.suppress(OSError):
                os.write(child.fd, word.encode() + b"\n")

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
        """Until all have ended."""
        for child in self._all:
            while not child.ended.is_set():
                await asyncio.to_thread(child.ended.wait, _AGAIN_S)

    async def end(self, *, timeout_s: float) -> None:
        """Have them finish what is begun; end them if that takes too long."""
        self.tell("stop")
        try:
            await asyncio.wait_for(self._wait(), timeout_s)
        except asyncio.TimeoutError:
            for child in self._all:
                if not child.ended.is_set():
                    log.warning("the helper (process %d) does not end: killing it", child.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
