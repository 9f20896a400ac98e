"""What the router must know of a request's body: the model, and whether a stream is asked for.

The body itself is forwarded as it came. What is read here is read as vLLM reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from exaslurm.router.errors import RequestError
from exaslurm.router.forms import fields, is_form

# Where the text is that a model reads, by path: what comes first in the tables is looked for first.
_PROMPTS: Final = {
    "/v1/chat/completions": (b'"messages"',),
    "/v1/completions": (b'"prompt"',),
    "/v1/messages": (b'"messages"',),
    "/v1/messages/count_tokens": (b'"messages"',),
    "/v1/responses": (b'"input"',),
    "/v1/embeddings": (b'"input"', b'"messages"'),
    "/pooling": (b'"input"', b'"messages"'),
    "/classify": (b'"input"', b'"messages"'),
    "/tokenize": (b'"prompt"', b'"messages"'),
    "/v1/rerank": (b'"query"',),
    "/v2/rerank": (b'"query"',),
    "/rerank": (b'"query"',),
}
# pydantic's words for true, which vLLM's models understand.
_TRUE: Final = frozenset(("1", "t", "true", "on", "y", "yes"))
_MAX_VALUE_BYTES: Final = 4096  # no name of a model is as long


class Peek(NamedTuple):
    """``model`` None: the request names none. ``stream``: an event stream is asked for.

    ``data`` is the body, None for a form. ``prompt_at`` is the offset in the body where the
    prompt starts, 0 if unknown; it is a guess, good enough to compare prompts by.
    """

    model: str | None
    stream: bool
    data: dict[str, Any] | None
    prompt_at: int


_new: Callable[..., Peek] = tuple.__new__  # what Peek(...) comes to in the end


def peek(route: str, content_type: bytes, raw: bytes) -> Peek:
    """Look into a body; RequestError (400) if no engine could understand it, or two could do so
    differently. A body whose type is not told (empty) is taken for JSON."""
    if content_type and is_form(content_type):
        return _peek_form(content_type, raw)
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # vLLM's parser is the more lenient one: NaN, lone surrogates, byte order marks.
        data = _lenient(raw)
    if type(data) is not dict:
        raise RequestError(400, f"the body must be a JSON object, not {kind(data)}", param="body")
    model = data.get("model")
    if type(model) is not str and model is not None:
        raise RequestError(400, f"'model' must be a string, not {kind(model)}", param="model")
    stream = data.get("stream", False)
    if stream is not True and stream is not False:
        stream = _is_true(stream)
    at = 0
    for key in _PROMPTS.get(route, ()):
        at = raw.find(key) + 1
        if at:
            at += len(key)  # just behind the colon that mostly follows at once
            break
    return _new(Peek, (model or None, stream, data, at))


def _lenient(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply", param="body") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        message = f"the body is not JSON: {error.msg} at {place}"
    except UnicodeDecodeError as error:
        message = f"the body is not JSON: byte {error.start} is no {error.encoding}"
    except ValueError as error:  # a number of thousands of digits
        message = f"the body is not JSON: {error}"
    raise RequestError(400, message, param="body")


def _is_true(value: Any) -> bool:
    """A truth value as vLLM's models read it."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, (bool, int, float)) and value == 1


def _peek_form(content_type: bytes, raw: bytes) -> Peek:
    """The last ``model`` and ``stream`` of a form (audio); the file in it is not looked at."""
    try:
        found = fields(raw, content_type, b"model", b"stream")
    except ValueError as error:
        message = f"the form cannot be read: {error}"
        raise RequestError(400, message, param="body") from None
    model = _last_value(raw, found[b"model"])
    return Peek(model or None, _is_true(_last_value(raw, found[b"stream"])), None, 0)


def _last_value(raw: bytes, found: list[tuple[int, int]]) -> str:
    if not found:
        return ""
    start, end = found[-1]
    return raw[start : min(end, start + _MAX_VALUE_BYTES)].decode("utf-8", "replace")


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
