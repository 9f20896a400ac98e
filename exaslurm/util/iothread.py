"""File I/O of long-lived processes: one helper thread, every call with a deadline.

A hung mount blocks a system call for as long as the mount hangs, and no signal or timeout ends
it. So such calls are made on a thread of their own; when one is stuck, callers go on without it.
A process has one such thread, so that a mount that hangs holds one thread and no more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from exaslurm.errors import StateError

T = TypeVar("T")


class FileSystemHangs(StateError):
    """A file call did not come back in time, or waits behind one that does not."""

    transient = True


class IoThread:
    """Runs file calls one after the other on a daemon thread.

    A call that is over its deadline raises FileSystemHangs; what it was to do may still happen
    later. While it is stuck, further calls fail at once instead of piling up.
    """

    def __init__(self, name: str = "files") -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stuck: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *args: Any, timeout_s: float) -> T:
        """The result of ``call(*args)``, made on the thread."""
        if self._stuck is not None and not self._stuck.done():
            raise FileSystemHangs("an earlier file call still hangs")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(lambda: _carry_out(loop, future, call, args))
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            self._stuck = future
            # Nobody may wait for it any more, and then its error would be reported as unseen.
            future.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise FileSystemHangs(f"no answer from the file system in {timeout_s:g} s")
        return future.result()

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call`` made when what came before is done, however long that takes. What it
        raises is lost; it must not pile up while the file system hangs."""

        def carry_out() -> None:
            with contextlib.suppress(Exception):
                call()

        self._queue.put(carry_out)

    def wait(self, call: Callable[[], T]) -> T:
        """The result of ``call``, for another thread, which waits for it without limit."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def carry_out() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self._queue.put(carry_out)
        return done.result()

    @property
    def is_here(self) -> bool:
        """Whether the caller is on the thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread when it has done what there is."""
        self._queue.put(None)

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call()


def _carry_out(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    call: Callable[..., T],
    args: tuple[Any, ...],
) -> None:
    try:
        result = call(*args)
    except Exception as error:
        _later(loop, future, error=error)
    else:
        _later(loop, future, result=result)


def _later(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    *,
    result: Any = None,
    error: Exception | None = None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended: nobody waits
        return
