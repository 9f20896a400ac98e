"""Every argument list that any process of the machine has while one watches."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

PASS_S = 0.1
YOUNG_S = 2.0


class ArgvWatch:
    """A thread that reads /proc; the machine's shows the processes of all hosts of a lab.

    Processes change their argument list mostly when they are young, by exec: those are read in
    each pass, the others every two seconds. What lives shorter than a pass can be missed.
    """

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.passes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="argv-watch", daemon=True)

    def __enter__(self) -> ArgvWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(10)

    def _watch(self) -> None:
        first_seen: dict[str, float] = {}
        all_due = 0.0
        while not self._over.wait(PASS_S):
            now = time.monotonic()
            pids = set(filter(str.isdigit, os.listdir("/proc")))
            first_seen = {pid: first_seen.get(pid, now) for pid in pids}
            every = now >= all_due
            if every:
                all_due = now + YOUNG_S
            for pid in pids:
                if every or now - first_seen[pid] < YOUNG_S:
                    self._read(pid)
            self.passes += 1

    def _read(self, pid: str) -> None:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                self.seen.add(file.read())
        except OSError:
            pass  # it ended
