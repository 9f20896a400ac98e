"""What processes use, and when the kernel killed for memory."""

from __future__ import annotations

import os

from exaslurm.agent.memory import OomWatch
from exaslurm.agent.usage import usage_of


def test_this_process_uses_something() -> None:
    before = usage_of([os.getpid()])
    ballast = bytearray(64 << 20)
    sum(number * number for number in range(300_000))
    after = usage_of([os.getpid(), 2**22 + 1])  # one that is not there
    assert len(ballast) == 64 << 20
    assert after.mem_mib >= before.mem_mib + 60
    assert after.cpu_s > before.cpu_s


class Kernel:
    kills: int | None = 3
    now = 100.0


def test_only_a_kill_of_the_last_seconds_counts() -> None:
    kernel = Kernel()
    watch = OomWatch(kills=lambda: kernel.kills, clock=lambda: kernel.now)
    assert watch.has_killed() is None
    kernel.kills = 4
    watch.look()
    kernel.now = 110.0
    assert watch.has_killed() is not None
    kernel.now = 121.0
    assert watch.has_killed() is None


def test_where_nothing_counts_nothing_is_said() -> None:
    kernel = Kernel()
    watch = OomWatch(kills=lambda: kernel.kills, clock=lambda: kernel.now)
    kernel.kills = None
    assert watch.has_killed() is None
    kernel.kills = 3
    assert watch.has_killed() is None
