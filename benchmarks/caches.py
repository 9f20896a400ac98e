"""Engines that cache prompts as vLLM does, and a trace replayed over them. Used by `affinity`.

The trace is Mooncake's (https://github.com/kvcache-ai/Mooncake, FAST25 release, Apache-2.0): of
each request the time, the lengths, and ids of its blocks of 512 tokens; equal ids are equal
beginnings. A text is made up for each block, so that the router sees bodies as from clients.

An engine's cache evicts the block that was free for longest; the blocks of a request are freed
from its last to its first when it ends, so that ends go before beginnings; what is found is the
run of cached blocks from the first one on. (That blocks of a running request cannot be evicted is
left out: they are the youngest anyway.)

Time is simple: an engine computes prompts one after another, so many tokens a second, cached ones
for nothing; every answer then takes a fixed time per token, however many there are.
"""

from __future__ import annotations

import gzip
import heapq
import json
import statistics
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xxhash import xxh3_64_intdigest

from exaslurm.router.blocks import blocks

BLOCK_TOKENS = 512
TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
_HEAD = b'{"model": "chat", "messages": [{"role": "user", "content": "'
TRACE = "mooncake_conversation_first_half.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Request:
    """``at_s`` from the trace's begin; ``keys``: the ids of the prompt's blocks; ``hashes``: what
    our router makes of a body with such a prompt."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    keys: Sequence[int]
    hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Timing:
    prompt_tokens_per_s: float = 4000.0
    s_per_output_token: float = 0.02


class Cache:
    """The prefix cache of one engine, of ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free: OrderedDict[int, None] = OrderedDict()  # evicted from the left

    def found(self, keys: Sequence[int]) -> int:
        """Blocks of the prompt that need not be computed."""
        for index, key in enumerate(keys):
            if key not in self._free:
                return index
        return len(keys)

    def use(self, keys: Sequence[int]) -> int:
        """Serve a prompt; the number of blocks that were found."""
        found = self.found(keys)
        for key in keys:
            self._free.pop(key, None)
        keep = keys[: self._capacity]
        while len(self._free) + len(keep) > self._capacity:
            self._free.popitem(last=False)
        for key in reversed(keep):
            self._free[key] = None
        return found


class Engine:
    """``blocks``, ``tokens``: of prompts, computed so far."""

    domains = ("", "", "")

    def __init__(self, number: int, capacity: int) -> None:
        self.ident = f"engine-{number}"
        self.cache = Cache(capacity)
        self.outstanding = 0
        self.penalty = 0.0
        self.closed = True
        self.busy_until_s = 0.0
        self.blocks = 0
        self.tokens = 0
        self._starts: list[float] = []

    def waiting(self, now_s: float) -> int:
        """Prompts whose turn has not come."""
        while self._starts and self._starts[0] <= now_s:
            heapq.heappop(self._starts)
        return len(self._starts)

    def serve(self, request: Request, timing: Timing) -> tuple[int, float]:
        """Blocks found, and the time of the first token."""
        found = self.cache.use(request.keys)
        tokens = max(1, request.prompt_tokens - found * BLOCK_TOKENS)
        self.blocks += len(request.keys) - found
        self.tokens += tokens
        start_s = max(self.busy_until_s, request.at_s)
        heapq.heappush(self._starts, start_s)
        self.busy_until_s = start_s + tokens / timing.prompt_tokens_per_s
        self.outstanding += 1
        return found, self.busy_until_s


class Policy(Protocol):
    def choose(self, request: Request, /) -> Engine: ...

    def sent(self, request: Request, engine: Engine, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """``hits``: blocks found, of all; ``imbalance``: prompt tokens that the busiest engine had to
    compute, of the mean."""

    hits: float
    imbalance: float
    ttft_median_s: float
    ttft_p90_s: float


def load(folder: Path) -> list[Request]:
    """The trace, from the folder of public data."""
    requests = []
    with gzip.open(folder / TRACE, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            keys, tokens = entry["hash_ids"], entry["input_length"]
            hashes = blocks(_body(keys, tokens), len(_HEAD))
            at_s = entry["timestamp"] / 1000
            requests.append(Request(at_s, tokens, entry["output_length"], keys, hashes))
    return requests


def _body(keys: Sequence[int], tokens: int) -> bytes:
    """A request with a text of its own for each block of the prompt."""
    words = BLOCK_BYTES // 16
    text = b"".join(b"%016x" % xxh3_64_intdigest(b"%d" % key) * words for key in keys)
    return _HEAD + text[: tokens * TOKEN_BYTES] + b'"}], "stream": true}'


def pooled(trace: Sequence[Request], capacity: int) -> float:
    """Blocks found, of all, in one cache that everything goes through."""
    cache = Cache(capacity)
    found = sum(cache.use(request.keys) for request in trace)
    return found / sum(len(request.keys) for request in trace)


def replay(
    trace: Sequence[Request], engines: Sequence[Engine], policy: Policy, timing: Timing
) -> Outcome:
    """Send the trace through ``policy`` to ``engines`` (fresh ones), in its own time."""
    ends: list[tuple[float, int, Engine]] = []
    found = 0
    waits = []
    for number, request in enumerate(trace):
        while ends and ends[0][0] <= request.at_s:
            heapq.heappop(ends)[2].outstanding -= 1
        engine = policy.choose(request)
        policy.sent(request, engine)
        hits, first_s = engine.serve(request, timing)
        found += hits
        waits.append(first_s - request.at_s)
        end_s = first_s + request.output_tokens * timing.s_per_output_token
        heapq.heappush(ends, (end_s, number, engine))
    tokens = [engine.tokens for engine in engines]
    return Outcome(
        hits=found / sum(len(request.keys) for request in trace),
        imbalance=max(tokens) / statistics.fmean(tokens),
        ttft_median_s=statistics.median(waits),
        ttft_p90_s=statistics.quantiles(waits, n=10)[-1],
    )
