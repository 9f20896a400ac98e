"""Waits with a limit that can be cancelled reliably.

Until Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes in the same round of the
loop as the result (https://github.com/python/cpython/issues/86296): a task that loops over it then
never ends. ``asyncio.timeout`` is not in Python 3.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The coroutine's result; asyncio.TimeoutError (and the coroutine cancelled) after
    ``timeout_s``."""
    task = asyncio.ensure_future(coroutine)
    try:
        done, _ = await asyncio.wait([task], timeout=timeout_s)
    except BaseException:
        task.cancel()
        raise
    if not done:
        task.cancel()
        await asyncio.wait([task])
        raise asyncio.TimeoutError
    return task.result()


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event is set within ``timeout_s``."""
    try:
        return await within(event.wait(), timeout_s)
    except asyncio.TimeoutError:
        return False
