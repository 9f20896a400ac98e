"""Requests of all kinds, as a router meets them in the course of years: good ones, refused ones,
engines that end in the middle, clients that leave before and in the middle of their answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from tests.tools.callers import Caller, close_all, each, request

# A share of each kind. How it must end: answered whole, broken off in good form, or by its client.
_KINDS = (
    (70, "plain", False, ""),
    (12, "stream", True, "events=6"),
    (4, "paced", True, "events=4 gap=0.001"),
    (3, "half", True, "half"),
    (3, "error", False, "status=500"),
    (3, "refused", False, "status=400"),
    (2, "reset", False, "reset"),
    (2, "leaves early", False, "delay=0.2"),
    (1, "leaves late", True, "events=200 gap=0.005"),
)


class Churn:
    """``ended`` counts how requests ended: ``whole``, ``error``, ``broken``, ``left``;
    ``unexpected`` has what must not happen. Prompts differ, so that nothing remembers them all."""

    def __init__(
        self, port: int, *, clients: int, key: str = "none", model: str = "chat", seed: int = 1
    ) -> None:
        self.ended: Counter[str] = Counter(whole=0, error=0, broken=0, left=0)
        self.unexpected: list[str] = []
        self.done = 0
        self._key = key
        self._model = model
        self._rng = random.Random(seed)
        self._callers = [Caller("127.0.0.1", port) for _ in range(clients)]
        self._weights = [share for share, *_ in _KINDS]

    async def requests(self, count: int) -> None:
        """So many more, by all clients together."""
        left = count

        async def many(number: int) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._one(self._callers[number])

        await each(len(self._callers), many)

    async def close(self) -> None:
        await close_all(self._callers)

    async def _one(self, caller: Caller) -> None:
        _, kind, stream, do = self._rng.choices(_KINDS, self._weights)[0]
        prompt = f"{self._rng.getrandbits(64):x} " * self._rng.randrange(4, 60)
        body = json.dumps({"model": self._model, "prompt": prompt, "stream": stream}).encode()
        raw = request(self._key, body, "/v1/completions", *([f"X-Do: {do}"] if do else []))
        self.done += 1
        if kind.startswith("leaves"):
            answer = await caller.begin(raw)
            await asyncio.sleep(0.02 if kind == "leaves early" else 0.05)
            caller.close()
            await caller.end()
            self.ended["left"] += 1
            return
        answer = await caller.ask(raw)
        if answer.good:
            how = "whole"
        elif answer.status == 200 and answer.whole:
            how = "broken"
        else:
            how = "error" if answer.whole else "lost"
        self.ended[how] += 1
        expected = {
            "half": ("broken",),
            "error": ("error",),
            "refused": ("error",),
            "reset": ("error",),
        }.get(kind, ("whole",))
        if how not in expected:
            self.unexpected.append(f"{kind}: {how}, {answer.status} {answer.body[:200]!r}")
