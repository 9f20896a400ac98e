"""vLLM's JSON bodies, for a simulated engine. Pure, but for ids and times given by the caller."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from exaslurm.engines.simulated import MARK


class ApiError(Exception):
    """A request that is answered with an error. ``param`` names the field at fault."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, kind, param)


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "BadRequestError", param)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return encode({"error": error})


def encode(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


@dataclass(frozen=True, slots=True)
class Style:
    """The two kinds of generated answers: chat and plain completions."""

    chat: bool
    ident: str
    model: str
    created: int

    @classmethod
    def of(cls, path: str, request_id: str, model: str) -> Style:
        chat = path.endswith("/chat/completions")
        prefix = "chatcmpl" if chat else "cmpl"
        return cls(chat, f"{prefix}-{request_id}", model, int(time.time()))

    def whole(self, text: str, finish: str, prompt_tokens: int, made: int) -> bytes:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.chat else "text_completion"
        body = self._frame(kind, [choice])
        body["usage"] = usage(prompt_tokens, made)
        return encode(body)

    def opening(self) -> bytes:
        """The first event of a chat stream names the role; completions have none."""
        if not self.chat:
            return b""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, text: str, finish: str | None) -> bytes:
        return self._chunk({"content": text}, finish)

    def final_usage(self, prompt_tokens: int, made: int) -> bytes:
        body = self._frame(self._chunk_kind(), [])
        body["usage"] = usage(prompt_tokens, made)
        return event(body)

    def _chunk(self, delta: dict[str, Any], finish: str | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        return event(self._frame(self._chunk_kind(), [choice]))

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.ident,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": MARK,
        }
