"""The corpus of requests: what real vLLM says to each, and what a router in front of it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools.ask_vllm import JSON, Case, Engine, cases, read

CORPUS = Path(__file__).resolve().parents[1] / "router" / "corpus"
MODEL = "tiny"
MAX_MODEL_LEN = 64  # of the engines that were asked
# As lenient as a server can be made: what this one refuses, no other accepts.
SERVERS = {
    "generate": (
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--trust-request-chat-template", "--trust-request-mm-kwargs", "--max-logprobs", "-1"),
    ),
    "pooling": ("--runner", "pooling"),
}
# 404: an unknown model, or a path that this engine does not have.
ACCEPTED = (200, 404)
_LARGE_BYTES = 8 * 1024 * 1024


@dataclass
class Compared:
    """What the corpus says against what was answered: lists of what is not as it should be.

    ``untrue``: vLLM answers otherwise than the corpus says. ``stricter``: vLLM takes it, and the
    router does not pass it on. ``unlike``: neither the router nor vLLM takes it, and the router's
    status is neither vLLM's nor 400.
    """

    asked: int = 0
    accepted: int = 0
    untrue: list[str] = field(default_factory=list)
    stricter: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)

    def add(self, case: Case, direct: tuple[int, str], through: tuple[int, str]) -> None:
        status, said = direct
        shown = f"{case.path} {case.name} {case.raw[:200]!r}"
        self.asked += 1
        if status != case.status != 0:
            self.untrue.append(f"{shown}: {status} {said[:200]}, not {case.status}")
        if status in ACCEPTED:
            self.accepted += 1
            if through[0] != status:
                self.stricter.append(f"{shown}: {through[0]} {through[1][:200]}, not {status}")
        elif through[0] not in (status, 400):
            self.unlike.append(f"{shown}: {through[0]} {through[1][:200]}, not {status}")


def compare(kind: str, engine: Engine, router: Engine) -> Compared:
    """Ask both everything that is for this kind of engine."""
    found = Compared()
    for case in (*_written(kind), *_near_the_limits(kind)):
        found.add(case, engine.ask(case), router.ask(case))
    return found


def _written(kind: str) -> Iterator[Case]:
    for file in sorted(CORPUS.glob(f"{kind}-*.jsonl")):
        for line in read(file):
            yield from cases(line)


def _near_the_limits(kind: str) -> Iterator[Case]:
    """Prompts of about as many tokens as there may be, and a body that is large without one."""
    for count in range(MAX_MODEL_LEN - 3, MAX_MODEL_LEN + 3):
        ids = [5] * count
        text = " ".join(["def"] * count)
        if kind == "pooling":
            yield _case("/v1/embeddings", model=MODEL, input=ids)
            yield _case("/v1/embeddings", model=MODEL, input=text)
            yield _case("/v1/embeddings", model=MODEL, input=text * 2, truncate_prompt_tokens=8)
            continue
        for limit in (1, 3):
            yield _case("/v1/completions", model=MODEL, prompt=ids, max_tokens=limit)
            yield _case("/v1/completions", model=MODEL, prompt=[[5], ids], max_tokens=limit)
            yield _case("/v1/completions", model=MODEL, prompt=text, max_tokens=limit)
        yield _case("/v1/completions", model=MODEL, prompt=ids)
        yield _case(
            "/v1/completions", model=MODEL, prompt=ids * 2, truncate_prompt_tokens=8, max_tokens=1
        )
        messages = [{"role": "user", "content": text}]
        yield _case("/v1/chat/completions", model=MODEL, messages=messages)
        yield _case("/v1/chat/completions", model=MODEL, messages=messages, max_tokens=count)
        yield _case("/v1/responses", model=MODEL, input=text, max_output_tokens=count)
        yield _case("/tokenize", model=MODEL, prompt=text * 100)
    path, name = {
        "generate": ("/v1/completions", "prompt"),
        "pooling": ("/v1/embeddings", "input"),
    }[kind]
    small = json.dumps({"model": MODEL, name: "x", "user": "y"}).encode()
    yield Case(path, small.replace(b"{", b"{" + b" " * _LARGE_BYTES), JSON, 200, "white space")
    yield Case(path, small.replace(b'"y"', b'"' + b"y" * _LARGE_BYTES + b'"'), JSON, 200, "user")


def _case(path: str, **body: object) -> Case:
    name = f"{len(str(body))} characters"
    return Case(path, json.dumps(body).encode(), JSON, 0, name)
