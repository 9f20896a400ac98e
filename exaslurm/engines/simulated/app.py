"""The HTTP surface of a simulated engine: a bare ASGI application."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from exaslurm.engines.middleware import Receive, Scope, Send
from exaslurm.engines.simulated import MARK
from exaslurm.engines.simulated.answers import (
    DONE,
    ApiError,
    Style,
    bad_request,
    encode,
    error_body,
    usage,
)
from exaslurm.engines.simulated.metrics import CONTENT_TYPE, EngineMetrics
from exaslurm.engines.simulated.options import Options
from exaslurm.engines.simulated.scheduler import Scheduler, Sequence
from exaslurm.engines.simulated.text import (
    CHARACTERS_PER_TOKEN,
    answer_token,
    count_tokens,
    message_text,
    seed_of,
    unit_vector,
)

VERSION = "0.32.0"
_SHUT_DOWN = "cannot schedule new futures after shutdown"
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Request:
    """One HTTP request with its body."""

    def __init__(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.body = body
        self.receive = receive
        self._send = send

    def json(self) -> dict[str, Any]:
        """The body as an object; ApiError (400) in vLLM's words otherwise."""
        if not self.headers.get(b"content-type", b"").startswith(b"application/json"):
            text = (
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            )
            raise ApiError(400, text, "Bad Request")
        try:
            data = json.loads(self.body)
        except ValueError as error:
            raise ApiError(400, f"JSON decode error: {error}", "Bad Request", "body") from None
        if not isinstance(data, dict):
            raise ApiError(400, "Input should be a valid dictionary", "Bad Request", "body")
        return data

    async def start(self, status: int, content_type: str, length: int | None = None) -> None:
        headers = [
            (b"content-type", content_type.encode()),
            (b"x-exaslurm-simulated", b"1"),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(
        self, body: bytes, status: int = 200, content_type: str = "application/json"
    ) -> None:
        await self.start(status, content_type, len(body))
        await self.write(body, more=False)


Handler = Callable[[Request], Awaitable[None]]


class SimulatedApp:
    """One engine: its scheduler, counters and routes."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.scheduler = Scheduler(options.timing)
        self.closing = False
        self._metrics = EngineMetrics(options.names[0], options.timing)
        self._sleeping = False
        self._created = int(time.time())
        self._stepping: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._empty,
            ("GET", "/ping"): self._empty,
            ("POST", "/ping"): self._empty,
            ("GET", "/version"): self._version,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics_page,
            ("GET", "/v1/models"): self._models,
            ("GET", "/is_sleeping"): self._is_sleeping,
            ("POST", "/sleep"): self._sleep,
            ("POST", "/wake_up"): self._wake_up,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
        }
        if options.runner in ("auto", "generate"):
            self._routes["POST", "/v1/chat/completions"] = self._generate
            self._routes["POST", "/v1/completions"] = self._generate
        if options.runner in ("auto", "pooling"):
            self._routes["POST", "/v1/embeddings"] = self._embeddings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        if self._stepping is None:
            self._stepping = asyncio.create_task(self.scheduler.run())
        handler = self._routes.get((scope["method"], scope["path"]))
        body = await _read(receive)
        if body is None:
            return
        request = Request(scope, body, receive, send)
        try:
            if handler is not None:
                await handler(request)
            elif any(path == request.path for _, path in self._routes):
                await request.reply(b'{"detail":"Method Not Allowed"}', 405)
            else:
                await request.reply(b'{"detail":"Not Found"}', 404)
        except ApiError as error:
            await request.reply(error.body, error.status)

    def end(self) -> None:
        """Make no more tokens: as the end of the process."""
        if self._stepping is not None:
            self._stepping.cancel()

    async def _empty(self, request: Request) -> None:
        await request.reply(b"")

    async def _version(self, request: Request) -> None:
        await request.reply(encode({"version": f"{VERSION}+{MARK}"}))

    async def _load(self, request: Request) -> None:
        await request.reply(encode({"server_load": len(self.scheduler.running)}))

    async def _metrics_page(self, request: Request) -> None:
        page = self._metrics.render(self.scheduler, sleeping=self._sleeping)
        await request.reply(page, content_type=CONTENT_TYPE)

    async def _models(self, request: Request) -> None:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": MARK,
                "root": self.options.names[0],
                "parent": None,
                "max_model_len": self.options.max_model_len,
                "permission": [],
            }
            for name in self.options.names
        ]
        await request.reply(encode({"object": "list", "data": cards}))

    async def _is_sleeping(self, request: Request) -> None:
        await request.reply(encode({"is_sleeping": self._sleeping}))

    async def _sleep(self, request: Request) -> None:
        self._sleeping = True
        self.scheduler.paused.clear()
        await request.reply(encode({"status": "sleeping", "level": 1}))

    async def _wake_up(self, request: Request) -> None:
        self._sleeping = False
        self.scheduler.paused.set()
        await request.reply(encode({"status": "awake", "tags": None}))

    async def _tokenize(self, request: Request) -> None:
        data = request.json()
        messages = data.get("messages")
        text = _chat_text(messages) if isinstance(messages, list) else str(data.get("prompt", ""))
        pieces = [
            text[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(text), CHARACTERS_PER_TOKEN)
        ]
        tokens = [int.from_bytes(seed_of(piece)[:2], "little") for piece in pieces]
        body = {
            "count": len(tokens),
            "max_model_len": self.options.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        await request.reply(encode(body))

    async def _detokenize(self, request: Request) -> None:
        tokens = request.json().get("tokens")
        if not isinstance(tokens, list):
            raise bad_request("Field required", "tokens")
        words = [answer_token(seed_of(str(token)), 1 << 20) for token in tokens]
        await request.reply(encode({"prompt": "".join(words)}))

    async def _embeddings(self, request: Request) -> None:
        data = request.json()
        self._check_model(data)
        given = data.get("input")
        texts = given if isinstance(given, list) and not _is_tokens(given) else [given]
        if given is None or not texts:
            raise bad_request("Field required", "input")
        words = [text if isinstance(text, str) else json.dumps(text) for text in texts]
        tokens = sum(count_tokens(text) for text in words)
        await asyncio.sleep(self.options.timing.step_s(1, tokens))
        dimensions = data.get("dimensions") or self.options.embedding_size
        vectors = [unit_vector(text, dimensions) for text in words]
        as_text = data.get("encoding_format") == "base64"
        items = [
            {
                "index": index,
                "object": "embedding",
                "embedding": _packed(vector) if as_text else vector,
            }
            for index, vector in enumerate(vectors)
        ]
        self._metrics.embedded(tokens)
        body = {
            "id": f"embd-{_request_id(request)}",
            "object": "list",
            "created": int(time.time()),
            "model": data.get("model") or self.options.names[0],
            "data": items,
            "usage": usage(tokens, 0),
            "system_fingerprint": MARK,
        }
        await request.reply(encode(body))

    async def _generate(self, request: Request) -> None:
        data = request.json()
        model = self._check_model(data)
        if self.closing:
            raise ApiError(500, _SHUT_DOWN, "InternalServerError")
        prompt = _prompt(request.path, data)
        sequence = self._sequence(data, count_tokens(prompt))
        style = Style.of(request.path, _request_id(request), model)
        gone = asyncio.create_task(_disconnected(request.receive))
        self.scheduler.submit(sequence)
        gone.add_done_callback(lambda _: self.scheduler.abort(sequence))
        try:
            if data.get("stream") is True:
                await self._stream(request, data, style, sequence, seed_of(prompt))
            else:
                await self._whole(request, style, sequence, seed_of(prompt))
        finally:
            gone.cancel()
            self.scheduler.abort(sequence)
            self._metrics.finished(sequence, time.monotonic())

    async def _whole(self, request: Request, style: Style, sequence: Sequence, seed: bytes) -> None:
        while not sequence.ended:
            await sequence.next_tokens(sequence.produced)
        if sequence.finish == "error":
            raise ApiError(500, _DEAD, "InternalServerError")
        if sequence.finish == "abort":
            return
        text = "".join(answer_token(seed, index) for index in range(sequence.produced))
        body = style.whole(
            text.rstrip(), sequence.finish, sequence.prompt_tokens, sequence.produced
        )
        await request.reply(body)

    async def _stream(
        self,
        request: Request,
        data: dict[str, Any],
        style: Style,
        sequence: Sequence,
        seed: bytes,
    ) -> None:
        await request.start(200, "text/event-stream; charset=utf-8")
        sent = 0
        while not (sequence.ended and sent == sequence.produced):
            made = await sequence.next_tokens(sent)
            if made == sent:
                break
            text = "".join(answer_token(seed, index) for index in range(sent, made))
            last = sequence.ended and sequence.finish not in ("abort", "error")
            piece = style.piece(text.rstrip() if last else text, sequence.finish if last else None)
            await request.write((b"" if sent else style.opening()) + piece, more=True)
            sent = made
        if sequence.finish == "abort":
            return
        if sequence.finish == "error":
            body = b"data: " + error_body(500, _DEAD, "InternalServerError") + b"\n\n"
            await request.write(body + DONE, more=False)
            return
        options = data.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await request.write(style.final_usage(sequence.prompt_tokens, sent), more=True)
        await request.write(DONE, more=False)

    def _check_model(self, data: dict[str, Any]) -> str:
        model = data.get("model")
        if model is None:
            return self.options.names[0]
        if model not in self.options.names:
            names = ", ".join(self.options.names)
            text = f"The model `{model}` does not exist. Valid aliases: {names}."
            raise ApiError(404, text, "NotFoundError", "model")
        return str(model)

    def _sequence(self, data: dict[str, Any], prompt_tokens: int) -> Sequence:
        limit = self.options.max_model_len
        room = limit - prompt_tokens
        if room < 1:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains at least {prompt_tokens} input tokens.",
                "input_tokens",
            )
        asked = data.get("max_completion_tokens") or data.get("max_tokens")
        if asked is not None and (not isinstance(asked, int) or asked < 1):
            raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens")
        if asked is not None and asked > limit:
            raise bad_request(
                f"max_tokens={asked} cannot be greater than max_model_len={limit}.", "max_tokens"
            )
        cap = min(room, asked or room)
        wanted = cap if data.get("ignore_eos") else min(cap, self.options.answer_tokens)
        finish = "stop" if wanted < cap else "length"
        if not self.scheduler.fits(prompt_tokens + wanted):
            raise bad_request("the request needs more KV blocks than there are", "input_tokens")
        return Sequence(prompt_tokens, wanted, "stop" if finish == "stop" else "length")


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None if the client left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _prompt(path: str, data: dict[str, Any]) -> str:
    if path.endswith("/chat/completions"):
        messages = data.get("messages")
        if messages is None:
            raise ApiError(400, "Field required", "Bad Request", "body.messages")
        if not isinstance(messages, list):
            raise ApiError(400, "Input should be a valid list", "Bad Request", "body.messages")
        if not messages:
            raise bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        return _chat_text(messages)
    prompt = data.get("prompt")
    if not prompt:
        raise bad_request(
            "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
        )
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


def _chat_text(messages: list[Any]) -> str:
    return "\n".join(message_text(message) for message in messages) + "\n"


def _is_tokens(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, int) for value in values)


def _packed(vector: Any) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _request_id(request: Request) -> str:
    given = request.headers.get(b"x-request-id")
    return given.decode("latin-1") if given else secrets.token_hex(8)
