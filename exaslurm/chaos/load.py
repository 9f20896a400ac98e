"""Clients of a deployment while something is done to it: plain requests and streams, paced."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from exaslurm.chaos.asked import Asked, is_complete
from exaslurm.chaos.figures import GAP_S
from exaslurm.errors import NotReadyError

CLIENT_TIMEOUT_S = 120.0
_RETRY_S = 0.05
_TAIL_BYTES = 4096
_WARM_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is asked. ``concurrency`` clients, each with one request at a time, of which every
    ``1 / stream_share``th wants a stream; ``rate_per_s``: all together, at most (0: as they can).
    ``prompt_words`` is about how long a prompt is, ``max_tokens`` how long an answer;
    ``own_prompts``: how many different ones each client has (0: as many as it asks)."""

    model: str
    concurrency: int = 16
    rate_per_s: float = 0.0
    stream_share: float = 0.5
    prompt_words: int = 8
    max_tokens: int = 32
    timeout_s: float = CLIENT_TIMEOUT_S
    own_prompts: int = 0


@dataclass
class Load:
    """Use as ``async with``; ``asked`` and ``silences`` grow while it runs.

    ``address`` says where to (asked again when a connection was lost), ``key`` is the clients',
    ``tls`` what their certificate check needs. ``reconnects``: a request whose connection to the
    router is lost is asked once more.
    """

    plan: LoadPlan
    address: Callable[[], str]
    key: str
    tls: ssl.SSLContext | None = None
    reconnects: bool = False
    asked: list[Asked] = field(default_factory=list)
    silences: list[tuple[float, float]] = field(default_factory=list)

    async def __aenter__(self) -> Load:
        self._over = asyncio.Event()
        self._waiting = 0
        self._heard_s = time.monotonic()
        self._next_s = time.monotonic()
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.key}"},
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls or True),
            timeout=aiohttp.ClientTimeout(total=self.plan.timeout_s),
            trust_env=False,
        )
        self._tasks = [
            asyncio.create_task(self._client(number)) for number in range(self.plan.concurrency)
        ]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Ask nothing new, and wait for what is under way: it ends, if by its own time-out. After
        an error nobody wants its figures."""
        self._over.set()
        patience_s = self.plan.timeout_s + 10.0 if kind is None else 0.0
        for task in (await asyncio.wait(self._tasks, timeout=patience_s))[1]:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def warm(self, timeout_s: float = _WARM_S) -> None:
        """Until as many requests were answered as there are clients; NotReadyError if they are not
        in time."""
        deadline_s = time.monotonic() + timeout_s
        while sum(map(is_complete, self.asked)) < self.plan.concurrency:
            broken = [task for task in self._tasks if task.done() and task.exception()]
            if broken or time.monotonic() > deadline_s:
                said = next((item.said for item in self.asked if item.said), "no answer")
                raise NotReadyError(
                    f"the load finds no service before anything is done to it: {said}",
                    remedy="exaslurm status DEPLOYMENT",
                )
            await asyncio.sleep(_RETRY_S)

    async def _client(self, number: int) -> None:
        share, turn = self.plan.stream_share, number
        while await self._may_go_on():
            # Evenly mixed over the requests of each client, and over clients.
            stream = int((turn + 1) * share) > int(turn * share)
            prompt = turn % self.plan.own_prompts if self.plan.own_prompts else turn
            await self._ask(f"{number}.{prompt}", stream=stream)
            turn += 1

    async def _may_go_on(self) -> bool:
        """Wait for this request's time. False when the load is over."""
        if self.plan.rate_per_s and not self._over.is_set():
            due_s = max(self._next_s, time.monotonic())
            self._next_s = due_s + 1 / self.plan.rate_per_s
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), max(0.0, due_s - time.monotonic()))
        return not self._over.is_set()

    async def _ask(self, number: str, *, stream: bool) -> None:
        words = " ".join(["and on"] * max(0, (self.plan.prompt_words - 4) // 2))
        body = {
            "model": self.plan.model,
            "messages": [
                {"role": "user", "content": f"Count from {number} upwards {words}".strip()}
            ],
            "max_tokens": self.plan.max_tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        asked = Asked(stream=stream, asked_s=time.monotonic())
        self.asked.append(asked)
        self._begin()
        try:
            await self._try(asked, body)
            if asked.lost and self.reconnects:
                await self._once_more(asked, body)
        finally:
            asked.ended_s = asked.ended_s or time.monotonic()
            self._waiting -= 1
            if self._waiting == 0:
                self._heard()  # nobody waits any more: that silence is over, too
        if asked.lost or asked.status != 200:
            await asyncio.sleep(_RETRY_S)  # a client that is refused does not hammer

    async def _once_more(self, asked: Asked, body: dict[str, Any]) -> None:
        """Connect again, for as long as the client has patience, and ask once more."""
        asked.reconnected = True
        deadline_s = asked.asked_s + self.plan.timeout_s
        while asked.lost and time.monotonic() < deadline_s:
            await asyncio.sleep(_RETRY_S)
            asked.status, asked.begun_s, asked.ended_s, asked.tail = 0, 0.0, 0.0, b""
            asked.lost = asked.late = False
            await self._try(asked, body)
            if asked.lost and asked.status:
                return  # it was taken, and lost again

    async def _try(self, asked: Asked, body: dict[str, Any]) -> None:
        keep = _TAIL_BYTES if asked.stream else 1 << 24
        left_s = max(0.1, asked.asked_s + self.plan.timeout_s - time.monotonic())
        try:
            url = self.address().rstrip("/") + "/chat/completions"
            async with self._session.post(
                url, json=body, timeout=aiohttp.ClientTimeout(total=left_s)
            ) as answer:
                asked.status = answer.status
                asked.replica = answer.headers.get("x-exaslurm-replica", "")
                async for piece in answer.content.iter_any():
                    self._heard()
                    if answer.status == 200 and not asked.begun_s:
                        asked.begun_s = time.monotonic()
                    asked.tail = (asked.tail + piece)[-keep:]
        except asyncio.TimeoutError:
            asked.late, asked.said = True, f"no answer in {self.plan.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, NotReadyError) as error:
            asked.lost, asked.said = True, f"{type(error).__name__}: {error}"
        else:
            if asked.status != 200:
                asked.said = asked.tail[:200].decode(errors="replace")
        asked.ended_s = time.monotonic()

    def _begin(self) -> None:
        if self._waiting == 0:
            self._heard_s = time.monotonic()
        self._waiting += 1

    def _heard(self) -> None:
        now_s = time.monotonic()
        if now_s - self._heard_s > GAP_S:
            self.silences.append((self._heard_s, now_s))
        self._heard_s = now_s
