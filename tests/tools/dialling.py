"""Connections of the router to engines that do not come about as they should."""

from __future__ import annotations

from asyncio import BaseEventLoop
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from exaslurm.router.upstream import Connection

Dial = Callable[[], Awaitable[Connection]]


def dialled(patch: pytest.MonkeyPatch, dial: Callable[[Dial], Awaitable[Connection]]) -> None:
    """Have ``dial`` open the router's connections to engines, with what opens the next one for it.
    Of the loop and not of the router, whose methods may be compiled, and then call each other."""
    real = BaseEventLoop.create_connection

    async def create_connection(self: Any, make: Any, *place: Any, **options: Any) -> Any:
        async def go_on() -> Connection:
            nonlocal transport
            transport, connection = await real(self, make, *place, **options)
            return connection  # type: ignore[no-any-return]

        transport: Any = None
        if options:  # how others open theirs
            return await real(self, make, *place, **options)
        connection = await dial(go_on)
        return transport, connection

    patch.setattr(BaseEventLoop, "create_connection", create_connection)
