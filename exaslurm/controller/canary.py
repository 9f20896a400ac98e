"""One real request to an engine through its advertised address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from exaslurm.core.plan import ModelPlan

_EMBEDS = {"embed", "embedding", "pooling"}
_NOT_FOR_THIS_MODEL = frozenset({400, 404, 405, 422, 501})


def requests_for(model: ModelPlan, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Path and body of the requests to try, in order: a model without a chat template refuses
    chat, and an embedding model refuses both kinds of generation."""
    chat = (
        "/v1/chat/completions",
        {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    )
    completion = ("/v1/completions", {"model": name, "prompt": "Hi", "max_tokens": 1})
    embedding = ("/v1/embeddings", {"model": name, "input": "Hi"})
    args = model.engine.args
    hints = {str(args.get(key, "")) for key in ("runner", "task", "convert")}
    if hints & _EMBEDS:
        return [embedding]
    return [chat, completion, embedding]


async def send(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    model: ModelPlan,
    name: str,
    *,
    timeout_s: float,
) -> str | None:
    """None if the engine answered a real request; else why not, in one line."""
    reason = "no request was sent"
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
                reason = f"{path} answered {answer.status}: {_message(await answer.text())}"
                if answer.status not in _NOT_FOR_THIS_MODEL:
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
