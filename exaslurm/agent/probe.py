"""Questions to an engine over HTTP: does it live, what does it serve, how loaded is it, does it
work."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from exaslurm.agent.progress import Signs
from exaslurm.core.cell import EngineLoad
from exaslurm.core.trial import NOT_FOR_THIS_MODEL
from exaslurm.engines.middleware import HELD_PATH

# What each step of vLLM's core changes (see ``progress``), as the page of 0.32 names it.
_COUNTERS = frozenset(
    (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:kv_cache_usage_perc",
        "vllm:request_success_total",
        "vllm:prefix_cache_queries_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    )
)
Trial = Sequence[tuple[str, Mapping[str, Any]]]


class EngineProbe:
    """One engine's HTTP surface; every call is over within ``timeout_s``. ``trial``: path and body
    of the smallest real requests, in the order in which to try them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        key: str,
        timeout_s: float,
        trial: Trial = (),
    ) -> None:
        self._trial = trial
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

    async def signs(self) -> Signs | None:
        """Figures from ``/metrics``, and what its guard counts; None if there was no answer."""
        page = await self._get("/metrics")
        if page is None:
            return None
        lines = page.splitlines()
        held = await self._get(HELD_PATH)
        return Signs(load=parse_load(lines), counters=counters_of(lines), held=_held(held))

    async def answers(self, limit_s: float) -> bool:
        """Whether a real request of one token is answered within ``limit_s``."""
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            for path, body in self._trial:
                async with self._session.post(
                    self._url + path, json=dict(body), headers=self._headers, timeout=timeout
                ) as answer:
                    if answer.status == 200:
                        await answer.read()
                        return True
                    if answer.status not in NOT_FOR_THIS_MODEL:
                        return False
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            pass
        return False

    async def _get(self, path: str) -> str | None:
        try:
            async with self._session.get(
                self._url + path, headers=self._headers, timeout=self._timeout
            ) as answer:
                return await answer.text(errors="replace") if answer.status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return None


def _held(text: str | None) -> int | None:
    """The answer of ``HELD_PATH``; None where another guard stands before the engine."""
    try:
        return int(json.loads(text or "")["held"])
    except (ValueError, KeyError, TypeError):
        return None


def counters_of(lines: Iterable[str]) -> tuple[float, ...]:
    """Everything in Prometheus text that changes when the engine's core works, in order."""
    found = []
    for line in lines:
        if line.startswith("vllm:") and line.partition("{")[0] in _COUNTERS:
            try:
                found.append(float(line.rpartition(" ")[2]))
            except ValueError:
                continue
    return tuple(found)


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
