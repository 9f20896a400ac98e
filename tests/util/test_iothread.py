from __future__ import annotations

import asyncio
import threading

import pytest

from exaslurm.errors import StateError
from exaslurm.util.iothread import FileSystemHangs, IoThread


async def test_results_and_errors_come_back() -> None:
    files = IoThread()
    assert await files.run(lambda a, b: a + b, 1, 2, timeout_s=5) == 3

    def fail() -> None:
        raise StateError("disk full")

    with pytest.raises(StateError, match="disk full"):
        await files.run(fail, timeout_s=5)
    assert await files.run(threading.get_ident, timeout_s=5) != threading.get_ident()


async def test_calls_are_made_one_after_the_other() -> None:
    files = IoThread()
    order: list[int] = []
    await asyncio.gather(*(files.run(order.append, n, timeout_s=5) for n in range(20)))
    assert order == list(range(20))


async def test_a_call_that_hangs_is_given_up_and_others_fail_at_once() -> None:
    files = IoThread()
    free = threading.Event()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(FileSystemHangs, match=r"0\.1 s"):
        await files.run(free.wait, 20, timeout_s=0.1)
    for _ in range(3):
        with pytest.raises(FileSystemHangs, match="still hangs"):
            await files.run(lambda: None, timeout_s=20)
    assert loop.time() - began < 5
    free.set()

    async def works() -> bool:
        try:
            return await files.run(lambda: True, timeout_s=1)
        except FileSystemHangs:
            return False

    for _ in range(100):
        if await works():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the thread did not come back")


async def test_an_error_that_comes_too_late_is_not_reported_as_unseen() -> None:
    files = IoThread()
    free = threading.Event()

    def fail_late() -> None:
        free.wait(20)
        raise StateError("late")

    with pytest.raises(FileSystemHangs):
        await files.run(fail_late, timeout_s=0.05)
    free.set()
    await asyncio.sleep(0.1)


async def test_posted_calls_wait_for_their_turn_and_fail_quietly() -> None:
    files = IoThread()
    order: list[int] = []

    def fail() -> None:
        raise StateError("lost")

    files.post(lambda: order.append(1))
    files.post(fail)
    files.post(lambda: order.append(2))
    assert await files.run(lambda: list(order), timeout_s=5) == [1, 2]


async def test_another_thread_can_wait_for_a_call() -> None:
    files = IoThread()
    here = await asyncio.to_thread(files.wait, lambda: files.is_here)
    assert here
    assert not files.is_here
    with pytest.raises(StateError, match="full"):
        await asyncio.to_thread(files.wait, _full)


def _full() -> None:
    raise StateError("disk full")


async def test_it_ends_when_it_is_closed() -> None:
    files = IoThread("closing")
    files.close()
    for _ in range(100):
        if not any(thread.name == "closing" for thread in threading.enumerate()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the thread lives on")
