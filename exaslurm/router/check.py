"""Requests that no engine would take are refused before one is bothered. Never stricter than vLLM.

Every rule here was found by asking vLLM 0.32; tests/router/corpus holds what it answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exaslurm.router.errors import RequestError
from exaslurm.router.parse import kind

# Fields without which vLLM refuses a request, by path.
_REQUIRED = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}
_OR_ELSE = {"/v1/completions": "prompt_embeds"}


def check(route: str, data: Mapping[str, Any], max_model_len: int | None) -> None:
    """RequestError (400) if vLLM would certainly refuse this body, naming the field."""
    required = _REQUIRED.get(route)
    if required is not None and required not in data and _OR_ELSE.get(route, required) not in data:
        raise RequestError(400, f"the field '{required}' is missing", param=required)
    if required == "messages" and type(data["messages"]) is not list:
        message = f"'messages' must be a list, not {kind(data['messages'])}"
        raise RequestError(400, message, param="messages")


def output_tokens(data: Mapping[str, Any]) -> int | None:
    """How many tokens are asked for at most; None if the request does not say."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = data.get(name)
        if type(value) is int:
            return value
    return None


def floor_tokens(
    route: str, data: Mapping[str, Any], max_bytes_per_token: int | None = None
) -> int:
    """So many tokens the prompt has at least. Pass ``max_bytes_per_token`` where it is known."""
    return 0
