"""Plain chat requests at a fixed concurrency; prints how they ended as JSON.

Argument: {"base_url", "key_file", "model", "requests", "concurrency", "max_tokens", "started",
"tell", "until", "pause_s"}. ``started`` is a file that is made when a request is done, ``tell``
one when a tenth of them is. With ``until``, a file that somebody makes, requests go on until then,
``requests`` at the most. Each worker pauses ``pause_s`` after a request. A request fails "not
begun" if no byte of its answer came, "begun" if some did.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp


async def main(given: dict, key: str) -> None:
    url = given["base_url"] + "/chat/completions"
    todo = list(range(given["requests"]))
    ended: dict = {"ok": 0, "not_begun": 0, "begun": 0, "samples": [], "slowest_s": 0.0}

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": given["model"],
            "messages": [{"role": "user", "content": f"Count from {number} upwards."}],
            "max_tokens": given["max_tokens"],
            "ignore_eos": True,
        }
        status, begun, begin = 0, False, time.monotonic()
        try:
            async with session.post(url, json=body) as answer:
                status = answer.status
                text = await answer.content.readany()
                begun = bool(text) and status == 200
                while chunk := await answer.content.readany():
                    text += chunk
            if status == 200 and json.loads(text)["choices"]:
                ended["ok"] += 1
                return
            note = f"{status} {text[:200]!r}"
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError) as error:
            note = f"{status} {type(error).__name__}: {error}"
        finally:
            ended["slowest_s"] = max(ended["slowest_s"], time.monotonic() - begin)
        ended["begun" if begun else "not_begun"] += 1
        ended["samples"] = [*ended["samples"], note][:5]

    def over() -> bool:
        return bool(given.get("until")) and Path(given["until"]).exists()

    async def worker(session: aiohttp.ClientSession) -> None:
        while todo and not over():
            await one(session, todo.pop())
            await asyncio.sleep(given.get("pause_s", 0))
            if given.get("started"):
                Path(given["started"]).touch()  # noqa: ASYNC240 (a local file)
            if given.get("tell") and len(todo) < 0.9 * given["requests"]:
                Path(given["tell"]).touch()  # noqa: ASYNC240 (a local file, once or twice)

    headers = {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        await asyncio.gather(*(worker(session) for _ in range(given["concurrency"])))
    print(json.dumps(ended))


INPUT = json.loads(sys.argv[1])
asyncio.run(main(INPUT, Path(INPUT["key_file"]).read_text().strip()))
