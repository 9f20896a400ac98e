"""The same requests to an engine itself and to a router in front of it: are the answers the same?

Ids follow from ``X-Request-Id``, so they are equal. What an engine draws anew for each answer, the
time and random names, is masked before the bodies are compared; nothing else is. Of one and the
same answer, as a tap has seen it leave the engine, not a single bit may differ.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.tools.tap import Tap

JSON = "application/json"
HI = [{"role": "user", "content": 'Grüße 👋, what is\n"new"?'}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}

# A stream's pieces depend on how fast the engine gets to sending them: what it has made meanwhile
# is one piece. With --stream-interval there is mostly enough time between two.
_TRIES = 10
_DRAWN = re.compile(
    rb'(?<="created":)\d+|(?<="created_at":)\d+'
    rb"|(?<=chatcmpl-tool-)[0-9a-f]{16,}|(?<=msg_)[0-9a-f]{16,}|(?<=resp_)[0-9a-f]{16,}"
)


@dataclass(frozen=True)
class Side:
    """Where to ask: an engine or a router, and the key that it wants."""

    url: str
    key: str


@dataclass(frozen=True)
class Asked:
    """A request. ``status`` is the one that a real engine answers it with."""

    name: str
    path: str
    body: bytes
    status: int = 200
    content_type: str = JSON


@dataclass(frozen=True)
class Answer:
    """``fields`` has names in lower case; ``body`` is without the framing of chunks."""

    status: int
    fields: Mapping[str, str]
    body: bytes

    @property
    def masked(self) -> bytes:
        return _DRAWN.sub(b"~", self.body)


def ask(side: Side, asked: Asked, ident: str, **more: str) -> Answer:
    """``more``: header fields, with underscores for hyphens."""
    where = urlsplit(side.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    headers = {
        "Authorization": f"Bearer {side.key}",
        "Content-Type": asked.content_type,
        "X-Request-Id": ident,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    try:
        connection.request("POST", asked.path, asked.body, headers)
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, fields, answer.read())
    finally:
        connection.close()


def difference(engine: Side, router: Side, asked: Asked) -> str:
    """What is not the same when both are asked; empty if all is."""
    found = ""
    for number in range(_TRIES):
        ident = f"same-{asked.name}-{number}"
        direct, through = ask(engine, asked, ident), ask(router, asked, ident)
        found = (
            _other_status(asked, direct)
            or _other_status(asked, through)
            or _other_kind(direct, through)
            or _other_bytes(direct.masked, through.masked)
        )
        if not found or not direct.fields.get("content-type", "").startswith("text/event-stream"):
            break
    return found


def changed(tap: Tap, router: Side, asked: Asked) -> str:
    """What a router has changed of a request and its answer, by a tap before its engine; empty if
    it is nothing."""
    ident = f"changed-{asked.name}"
    through = ask(router, asked, ident)
    exchange = tap.find(ident)
    return (
        _other_status(asked, through)
        or _other_bytes(asked.body, exchange.asked_body)
        or _other_bytes(exchange.answered_body, through.body)
    )


def _other_status(asked: Asked, answer: Answer) -> str:
    if answer.status == asked.status:
        return ""
    return f"{answer.status}, not {asked.status}: {answer.body[:300]!r}"


def _other_kind(direct: Answer, through: Answer) -> str:
    one, other = direct.fields.get("content-type"), through.fields.get("content-type")
    return "" if one == other else f"content type {other}, not {one}"


def _other_bytes(one: bytes, other: bytes) -> str:
    if one == other:
        return ""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, at - 40)
    return f"at byte {at}: {other[start : at + 60]!r}, not {one[start : at + 60]!r}"


def _json(**body: Any) -> bytes:
    return json.dumps(body).encode()


def _streamed(name: str, path: str, **body: Any) -> Iterator[Asked]:
    yield Asked(name, path, _json(**body))
    yield Asked(f"{name}-stream", path, _json(**body, stream=True))


def generating(model: str) -> Iterator[Asked]:
    """Requests to a model that writes: it must have a parser for tools, and 2,048 tokens."""
    # Greedily, a model that knows nothing soon says the same for ever.
    same = {"model": model, "temperature": 1, "seed": 7, "ignore_eos": True}
    chat = {**same, "messages": HI, "max_tokens": 24}
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    schema = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY, "strict": True}}
    forced = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    yield from _streamed("chat", CHAT, **chat)
    yield Asked("chat-usage", CHAT, _json(**chat, stream=True, **usage))
    yield from _streamed("chat-logprobs", CHAT, **chat, logprobs=True, top_logprobs=3)
    yield Asked("chat-two", CHAT, _json(**chat, n=2))
    yield from _streamed("chat-schema", CHAT, **chat, response_format=schema)
    yield from _streamed("chat-tool", CHAT, **chat, **forced)
    yield from _streamed("chat-tools", CHAT, **chat, tools=[WEATHER], tool_choice="required")
    yield Asked(
        "chat-by-hand",
        CHAT,
        b'\n{ "messages" : [ {"content":"\\u00e9\xc3\xa9", "role":"user"} ],\t"unknown": 1e2,'
        b' "max_tokens" : 5, "temperature" : 0.0, "model" : "%b"}\r\n' % model.encode(),
    )
    prompt = {**same, "prompt": "def main(", "max_tokens": 16}
    yield from _streamed("completion", COMPLETIONS, **prompt)
    yield Asked("completion-echo", COMPLETIONS, _json(**prompt, echo=True, logprobs=2))
    yield Asked("completion-many", COMPLETIONS, _json(**{**prompt, "prompt": ["a", "b c", "d"]}))
    yield Asked("completion-ids", COMPLETIONS, _json(**{**prompt, "prompt": [5, 6, 7]}))
    yield Asked("completion-long", COMPLETIONS, _json(**{**prompt, "max_tokens": 1500}, logprobs=5))
    respond = {"model": model, "temperature": 0, "input": "Say it.", "max_output_tokens": 16}
    yield from _streamed("response", RESPONSES, **respond, store=False)
    messages = {"model": model, "temperature": 0, "messages": HI, "max_tokens": 16}
    yield from _streamed("message", MESSAGES, **messages)
    yield Asked("count", f"{MESSAGES}/count_tokens", _json(model=model, messages=HI))
    yield Asked("tokenize", "/tokenize", _json(model=model, prompt="Grüße", return_token_strs=True))
    yield Asked("tokenize-chat", "/tokenize", _json(model=model, messages=HI))
    yield Asked("detokenize", "/detokenize", _json(model=model, tokens=[300, 400, 500]))
    # What only an engine can tell is wrong.
    long = {"model": model, "prompt": "one two three " * 2000, "max_tokens": 5}
    yield Asked("too-long", COMPLETIONS, _json(**long), 400)
    yield Asked("too-long-stream", COMPLETIONS, _json(**long, stream=True), 400)
    bad = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "nonsense"}}}
    yield Asked("bad-schema", CHAT, _json(**chat, response_format=bad), 400)
    yield Asked("bad-regex", CHAT, _json(**chat, structured_outputs={"regex": "("}), 400)
    yield Asked("no-embeddings", "/v1/embeddings", _json(model=model, input="x"), 404)
    yield Asked("no-score", "/v1/score", _json(model=model, text_1="x", text_2="y"), 404)


def pooling(model: str) -> Iterator[Asked]:
    """Requests to a model that gives vectors."""
    same = {"model": model}
    texts = ["a cat", "ein Kätzchen"]
    yield Asked("embedding", "/v1/embeddings", _json(**same, input=texts[0]))
    yield Asked("embeddings", "/v1/embeddings", _json(**same, input=texts))
    yield Asked(
        "embedding-base64",
        "/v1/embeddings",
        _json(**same, input=texts, encoding_format="base64"),
    )
    yield Asked("embedding-ids", "/v1/embeddings", _json(**same, input=[5, 6, 7]))
    yield Asked("score", "/v1/score", _json(**same, text_1="cat", text_2=["dog", "a cat"]))
    yield Asked("score-old", "/score", _json(**same, text_1="cat", text_2="dog"))
    rank = {"query": "cat", "documents": ["dog", "a cat", "stone"]}
    yield Asked("rerank", "/v1/rerank", _json(**same, **rank))
    yield Asked("rerank-2", "/v2/rerank", _json(**same, **rank, top_n=1))
    yield Asked("pooling", "/pooling", _json(**same, input="a cat"))
    yield Asked("pooling-tokenize", "/tokenize", _json(**same, prompt="a cat"))
    yield Asked("embedding-long", "/v1/embeddings", _json(**same, input="one two " * 3000), 400)
    yield Asked("no-chat", CHAT, _json(**same, messages=HI), 404)
