"""Clients of a fleet that is being hurt: paced streams, and plain requests at a steady rate."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Asked:
    """One request and how it ended. Times are monotonic; ``begun_s``: of the answer's head."""

    stream: bool
    asked_s: float
    status: int = 0
    replica: str = ""
    begun_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""

    @property
    def good(self) -> bool:
        return self.status == 200 and not self.error


@dataclass
class Traffic:
    """Use as ``async with``; ``asked`` grows while it runs."""

    url: str
    key: str
    model: str
    streams: int
    plain_per_s: float = 0.0
    plain_at_once: int = 0
    stream_tokens: int = 60
    plain_tokens: int = 4
    asked: list[Asked] = field(default_factory=list)

    async def __aenter__(self) -> Traffic:
        headers = {"Authorization": f"Bearer {self.key}"}
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout)
        self._over = asyncio.Event()
        self._number = 0
        self._tasks = [asyncio.create_task(self._loop(stream=True)) for _ in range(self.streams)]
        self._tasks += [
            asyncio.create_task(self._loop(stream=False)) for _ in range(self.plain_at_once)
        ]
        if self.plain_per_s:
            self._tasks.append(asyncio.create_task(self._steady()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask nothing new, and wait for what is under way."""
        self._over.set()
        done, pending = await asyncio.wait(self._tasks, timeout=60)
        for task in pending:
            task.cancel()
        await self._session.close()
        for task in done:
            task.result()
        assert not pending, f"{len(pending)} clients still wait"

    def over_soon(self) -> None:
        """What is under way is the last of it."""
        self._over.set()

    async def _loop(self, *, stream: bool) -> None:
        while not self._over.is_set():
            await self._ask(stream=stream)

    async def _steady(self) -> None:
        """At a rate, whether or not the others have been answered."""
        due_s = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        while not self._over.is_set():
            task = asyncio.create_task(self._ask(stream=False))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due_s += 1 / self.plain_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        if tasks:
            await asyncio.wait(tasks, timeout=60)

    async def _ask(self, *, stream: bool) -> None:
        self._number += 1
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"Count from {self._number} upwards."}],
            "max_tokens": self.stream_tokens if stream else self.plain_tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        asked = Asked(stream, time.monotonic())
        self.asked.append(asked)
        text = b""
        try:
            async with self._session.post(self.url + "/v1/chat/completions", json=body) as answer:
                asked.begun_s = time.monotonic()
                asked.status = answer.status
                asked.replica = answer.headers.get("x-exaslurm-replica", "")
                async for piece in answer.content.iter_any():
                    text = text[-4096:] + piece if stream else text + piece
                    if b'{"error":' in piece:
                        asked.error = "event" if stream and answer.status == 200 else "refused"
                        asked.ended_s = time.monotonic()
            if stream and asked.good and not text.endswith(b"data: [DONE]\n\n"):
                asked.error = "cut"
            elif not stream and asked.good and not json.loads(text)["choices"]:
                asked.error = "empty"
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError) as error:
            asked.error = f"{type(error).__name__}: {error}"
        asked.ended_s = asked.ended_s or time.monotonic()
