"""Constant load, with a look at the router every second; prints what came of it as JSON.

Argument: {"base_url", "key_file", "model", "until", "concurrency", "max_tokens", "pause_s"}. Half
of the workers ask for streams. Requests go on until somebody makes the file ``until``. A request
fails "not begun" if no byte of its answer came, "begun" if some did. ``seen`` is how many replicas
took requests, each time that it was another number: seconds since the start and number; ``blind``
are looks without an answer.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp

LONGEST_S = 120


def told_error(stream: bytes) -> bool:
    """Whether any event of a stream is an error. (A model may well say the word.)"""
    events = [row[6:] for row in stream.splitlines() if row.startswith(b"data: {")]
    return any("error" in json.loads(event) for event in events)


async def main(given: dict, key: str) -> None:
    base = given["base_url"]
    begun_s = time.monotonic()
    found: dict = {
        "answers": 0, "streams": 0, "not_begun": [], "begun": [], "slowest_s": 0.0, "gap_s": 0.0,
        "looks": 0, "blind": 0, "fewest": None, "seen": [], "replicas": [], "failures": 0,
    }  # fmt: skip
    last_s = begun_s

    def over() -> bool:
        return Path(given["until"]).exists()

    async def one(session: aiohttp.ClientSession, stream: bool) -> None:
        nonlocal last_s
        body = {
            "model": given["model"],
            "prompt": "on and on",
            "max_tokens": given["max_tokens"],
            "ignore_eos": True,
            "stream": stream,
        }
        begin_s, began, text, status = time.monotonic(), False, b"", 0
        try:
            async with session.post(f"{base}/completions", json=body) as answer:
                status = answer.status
                async for part in answer.content.iter_any():
                    began = began or status == 200
                    text = (text + part)[-4000:]
            ok = status == 200 and (
                text.rstrip().endswith(b"data: [DONE]") and not told_error(text)
                if stream
                else bool(json.loads(text)["choices"])
            )
            note = "" if ok else f"{status} {text[-200:]!r}"
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError) as error:
            note = f"{status} {type(error).__name__}: {error}"
        now_s = time.monotonic()
        found["slowest_s"] = max(found["slowest_s"], now_s - begin_s)
        if not note:
            found["answers"] += 1
            found["streams"] += stream
            found["gap_s"] = max(found["gap_s"], now_s - last_s)
            last_s = now_s
            return
        found["failures"] += 1
        kind = found["begun" if began else "not_begun"]
        kind.append(f"{begin_s - begun_s:.1f} s: {note}")

    async def work(session: aiohttp.ClientSession, number: int) -> None:
        while not over():
            await one(session, stream=number % 2 == 1)
            await asyncio.sleep(given.get("pause_s", 0))

    async def look(session: aiohttp.ClientSession) -> None:
        address = base.removesuffix("/v1") + "/status"
        while not over():
            try:
                async with session.get(address) as answer:
                    page = await answer.json()
                taking = [item["id"] for item in page["replicas"] if item["takes_requests"]]
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError):
                found["blind"] += 1
            else:
                count = len(taking)
                found["looks"] += 1
                found["replicas"] = sorted({*found["replicas"], *taking})
                if not found["seen"] or found["seen"][-1][1] != count:
                    found["seen"].append([round(time.monotonic() - begun_s, 1), count])
                fewest = found["fewest"]
                found["fewest"] = count if fewest is None else min(fewest, count)
            await asyncio.sleep(1)

    headers = {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=LONGEST_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        workers = (work(session, number) for number in range(given["concurrency"]))
        await asyncio.gather(look(session), *workers)
    found["gap_s"] = max(found["gap_s"], time.monotonic() - last_s)
    found["lasted_s"] = time.monotonic() - begun_s
    print(json.dumps(found))


INPUT = json.loads(sys.argv[1])
asyncio.run(main(INPUT, Path(INPUT["key_file"]).read_text().strip()))
