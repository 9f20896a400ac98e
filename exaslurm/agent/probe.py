"""Questions to an engine over HTTP: does it live, what does it serve, how loaded is it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

import aiohttp

from exaslurm.core.cell import EngineLoad


class EngineProbe:
    """One engine's HTTP surface; every call is over within ``timeout_s``."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, key: str, timeout_s: float
    ) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200."""
        try:
            async with self._session.get(f"{self._url}/health", timeout=self._timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def max_model_len(self) -> int | None:
        """The context length that ``/v1/models`` tells; None if it does not."""
        try:
            async with self._session.get(
                f"{self._url}/v1/models", headers=self._headers, timeout=self._timeout
            ) as answer:
                models = (await answer.json(content_type=None))["data"]
                return int(models[0]["max_model_len"])
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return None
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    async def load(self) -> EngineLoad | None:
        """Figures from ``/metrics``; None if there was no answer."""
        try:
            async with self._session.get(
                f"{self._url}/metrics", headers=self._headers, timeout=self._timeout
            ) as answer:
                if answer.status != 200:
                    return None
                text = await answer.text()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return None
        return parse_load(text.splitlines())


def parse_load(lines: Iterable[str]) -> EngineLoad:
    """vLLM's gauges in Prometheus text. Engine cores of one server are added up; KV use is the
    fullest one's. Names: vllm/v1/metrics/loggers.py of 0.32."""
    running = waiting = 0.0
    kv_use = 0.0
    sleeping = False
    for line in lines:
        if not line.startswith("vllm:"):
            continue
        head, _, number = line.rpartition(" ")
        name = head.partition("{")[0]
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        if name == "vllm:num_requests_running":
            running += value
        elif name == "vllm:num_requests_waiting":
            waiting += value
        elif name == "vllm:kv_cache_usage_perc":
            kv_use = max(kv_use, value)
        elif name == "vllm:engine_sleep_state" and 'sleep_state="awake"' not in head:
            sleeping = sleeping or value > 0
    return EngineLoad(running=int(running), waiting=int(waiting), kv_use=kv_use, sleeping=sleeping)
