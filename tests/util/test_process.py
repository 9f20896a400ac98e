"""A process is a pid with its start time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from exaslurm.util import process


def test_a_living_process_is_known_by_both() -> None:
    ticks = process.start_ticks(os.getpid())
    assert ticks is not None
    assert process.is_alive(os.getpid(), ticks)
    assert not process.is_alive(os.getpid(), ticks + 1)


def test_only_that_very_process_is_signalled() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ticks = process.start_ticks(child.pid)
        assert ticks is not None
        assert not process.send_signal(child.pid, ticks - 1, signal.SIGKILL)
        assert child.poll() is None
        assert process.send_signal(child.pid, ticks, signal.SIGKILL)
        # The zombie is gone as far as signals go, before anybody reaps it.
        deadline = time.monotonic() + 10
        while process.start_ticks(child.pid) is not None and time.monotonic() < deadline:
            pass
        assert not process.send_signal(child.pid, ticks, signal.SIGTERM)
        assert child.wait(10) == -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()


def test_there_is_no_process_zero() -> None:
    assert process.start_ticks(0) is None
    assert process.start_ticks(2**22 + 1) is None
