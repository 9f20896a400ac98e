"""What the router must know of a request's body. Never stricter than vLLM.

The body itself is forwarded as it came.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from exaslurm.router.errors import RequestError

# Fields without which vLLM refuses a request, by path (compare its answers to "{}").
_REQUIRED = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}
_OR_ELSE = {"/v1/completions": "prompt_embeds"}
_FORM_MODEL = re.compile(
    rb'content-disposition:[^\r\n]*;\s*name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n'
    rb"([^\r\n]{1,512})\r\n",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Peek:
    """``model`` None: the request names none. ``stream``: an event stream is asked for."""

    model: str | None
    stream: bool


def peek(path: str, content_type: str, raw: bytes) -> Peek:
    """Look into a body; RequestError (400) if no engine could understand it."""
    if content_type.startswith("multipart/form-data"):
        return _peek_form(raw)
    return _peek_json(path, raw)


def _peek_json(path: str, raw: bytes) -> Peek:
    try:
        data = json.loads(raw)
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RequestError(400, f"the body is not JSON: {error.msg} at {place}") from None
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(400, f"the body must be a JSON object, not {_kind(data)}", param="body")
    model = data.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError(400, f"'model' must be a string, not {_kind(model)}", param="model")
    required = _REQUIRED.get(path)
    if required is not None and required not in data and _OR_ELSE.get(path, required) not in data:
        raise RequestError(400, f"the field '{required}' is missing", param=required)
    if required == "messages" and not isinstance(data["messages"], list):
        message = f"'messages' must be a list, not {_kind(data['messages'])}"
        raise RequestError(400, message, param="messages")
    return Peek(model, data.get("stream") is True)


def _peek_form(raw: bytes) -> Peek:
    """The ``model`` part of a form (audio); the file in it is not looked at."""
    found = _FORM_MODEL.search(raw)
    model = found.group(1).decode("utf-8", "replace") if found else None
    return Peek(model, False)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
