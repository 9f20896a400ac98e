"""One real request to an engine through its advertised address."""

from __future__ import annotations

import asyncio

import aiohttp

from exaslurm.core.plan import ModelPlan
from exaslurm.core.trial import NOT_FOR_THIS_MODEL, requests_for


async def send(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    model: ModelPlan,
    name: str,
    *,
    timeout_s: float,
) -> str | None:
    """None if the engine answered a real request; else why not, in one line: what it said to the
    first request that it has a path for."""
    reason, told = "no request was sent", False
    try:
        for path, body in requests_for(model, name):
            async with session.post(
                url + path,
                json=dict(body),
                headers={"Authorization": f"Bearer {key}"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                if answer.status == 200:
                    await answer.read()
                    return None
                if not told:
                    said = _message(await answer.text(errors="replace"))
                    reason = f"{path} answered {answer.status}: {said}"
                    told = answer.status != 404
                if answer.status not in NOT_FOR_THIS_MODEL:
                    return reason
    except asyncio.TimeoutError:
        return f"{url} gave no answer to a request in {timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{url}: {error}"
    return reason


async def is_healthy(session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> bool:
    """Whether /health answers 200."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.get(url + "/health", timeout=timeout) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        return False


def _message(text: str) -> str:
    return " ".join(text.split())[:300]
