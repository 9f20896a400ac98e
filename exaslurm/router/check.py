"""Requests that no engine would take are refused before one is bothered. Never stricter than vLLM.

Every rule here was found by asking vLLM 0.32; tests/router/corpus holds what it answered. A
request that passes may still be refused by the engine, in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from exaslurm.router.errors import RequestError
from exaslurm.router.fields import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBED,
    FIELDS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    Field,
)
from exaslurm.router.parse import kind

# One of the alternatives must be there, and not null.
_REQUIRED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    CHAT: (("messages",),),
    COMPLETIONS: (("prompt", "prompt_embeds"),),
    RESPONSES: (("input",),),
    MESSAGES: (("messages",), ("model",), ("max_tokens",)),
    COUNT_TOKENS: (("messages",), ("model",)),
    TOKENIZE: (("prompt", "messages"),),
    "/detokenize": (("tokens",),),
    **dict.fromkeys(EMBED, (("input", "messages", "data"),)),
    **dict.fromkeys(RERANK, (("query",), ("documents",))),
    **dict.fromkeys(
        SCORE, (("queries", "text_1", "data_1"), ("documents", "items", "text_2", "data_2"))
    ),
}
_CONVERSATIONS: Final = frozenset((CHAT, MESSAGES, COUNT_TOKENS))
# These take a text or a conversation: if the text can be read, that is it.
_EITHER_TEXT: Final = {TOKENIZE: ("prompt", (str,)), **dict.fromkeys(EMBED, ("input", (str, list)))}
# The first of these that is not null counts.
_OUTPUT_LIMITS: Final = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
# Of bodies that are not looked into otherwise. No other path makes tokens, whatever is asked for.
_MORE_OUTPUT_LIMITS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    ("/v1/chat/completions/batch", "/invocations"), ("max_completion_tokens", "max_tokens")
)
_MOST_TOKENS: Final = 2**31
_Rule = Callable[[str, Mapping[str, Any], Any], None]
_MEASURED: Final = frozenset((int, float))
_NOT_CONTENT: Final = (int, float)  # and bool, which is an int


def check(route: str, data: Mapping[str, Any], max_model_len: int | None) -> None:
    """RequestError (400) if vLLM would certainly refuse this body, naming the field.

    ``max_model_len`` is the longest context, in tokens, among the engines that could answer.
    """
    for names in _REQUIRED.get(route, ()):
        for name in names:
            if data.get(name) is not None:
                break
        else:
            raise _missing(names, data)
    known = _KNOWN.get(route, _NOTHING)
    for name, value in data.items():
        entry = known.get(name)
        if entry is None or value is None:
            continue
        types, field, bounded, rule = entry
        if type(value) not in types and not field.reads(value):
            raise _wrong(name, field.expected, value)
        if (
            bounded
            and type(value) in _MEASURED
            and not field.low <= value <= field.high
            # Beam search does not look at what it does not use.
            and not data.get("use_beam_search")
        ):
            raise _outside(name, field, value)
        if rule is not None:
            rule(route, data, value)
    limits = _OUTPUT_LIMITS.get(route)
    if limits is not None:
        _check_length(route, data, limits, max_model_len)


def output_tokens(route: str, data: Mapping[str, Any]) -> int | None:
    """How many tokens are asked for at most, read as vLLM reads it; None if the request does not
    say, or asks for none. Never below 0, nor so many that a sum with them would be rounded."""
    for name in _OUTPUT_LIMITS.get(route) or _MORE_OUTPUT_LIMITS.get(route, ()):
        value = data.get(name)
        if value is not None:
            try:
                return min(max(0, int(value)), _MOST_TOKENS)
            except (ValueError, TypeError, OverflowError):
                return None
    return None


def floor_tokens(
    route: str, data: Mapping[str, Any], max_bytes_per_token: int | None = None
) -> int:
    """So many tokens the longest prompt of a request has at least, whatever the tokenizer.

    Token ids are counted. Text counts only where no token of the model's vocabulary stands for
    more than ``max_bytes_per_token`` bytes, and its tokenizer neither drops nor folds text.
    """
    prompt = data.get("prompt" if route == COMPLETIONS else "input")
    if type(prompt) is str:
        return len(prompt) // max_bytes_per_token if max_bytes_per_token else 0
    if type(prompt) is not list or not prompt:
        return 0
    first = prompt[0]
    if type(first) is int:
        return len(prompt)
    if type(first) is list:
        return max(len(each) for each in prompt if type(each) is list)
    return 0


def _check_length(
    route: str, data: Mapping[str, Any], limits: tuple[str, ...], max_model_len: int | None
) -> None:
    for name in limits:
        wanted = data.get(name)
        if wanted is not None:
            break
    if type(wanted) is int:
        # A completion of no token is the way to have one's own prompt scored.
        scored = wanted == 0 and route == COMPLETIONS and data.get("echo")
        if wanted < 1 and not scored and not data.get("use_beam_search"):
            raise RequestError(400, f"'{name}' must be at least 1, not {wanted}", param=name)
        if max_model_len is not None and wanted > max_model_len:
            message = (
                f"{name}={wanted} cannot be greater than max_model_len={max_model_len}; "
                "request fewer output tokens"
            )
            raise RequestError(400, message, param=name)
    if route != COMPLETIONS or max_model_len is None:
        return
    tokens = floor_tokens(route, data)
    if tokens > max_model_len and data.get("truncate_prompt_tokens") is None:
        message = (
            f"this model's maximum context length is {max_model_len} tokens, "
            f"but the prompt has {tokens}; shorten it"
        )
        raise RequestError(400, message, param="prompt")


def _check_messages(route: str, data: Mapping[str, Any], messages: Any) -> None:
    if route not in _CONVERSATIONS:
        name, types = _EITHER_TEXT.get(route, ("", ()))
        if not name or type(data.get(name)) in types:
            return
        if type(messages) is not list:
            raise _wrong("messages", "a list", messages)
    if not messages and not data.get("kv_transfer_params"):
        raise RequestError(400, "'messages' must have at least one message", param="messages")
    for number, message in enumerate(messages):
        if type(message) is not dict:
            raise _wrong(f"messages[{number}]", "an object", message)
        if type(message.get("role")) is not str:
            where = f"messages[{number}].role"
            if "role" in message:
                raise _wrong(where, "a string", message["role"])
            raise RequestError(400, f"the field '{where}' is missing", param=where)
        content = message.get("content")
        if type(content) is not str and isinstance(content, _NOT_CONTENT):
            raise _wrong(f"messages[{number}].content", "a string or a list", content)


def _check_text(route: str, data: Mapping[str, Any], text: Any) -> None:
    name, types = _EITHER_TEXT.get(route, ("", ()))
    if name and type(text) not in types and data.get("messages") is None:
        raise _wrong(name, "a string" if len(types) == 1 else "a string or a list", text)


def _check_prompt(route: str, data: Mapping[str, Any], prompt: Any) -> None:
    if route != COMPLETIONS:
        _check_text(route, data, prompt)
        return
    if prompt in ("", []) and not data.get("prompt_embeds"):
        raise RequestError(400, "'prompt' must not be empty", param="prompt")
    if type(prompt) is list and prompt and (prompt[0] is None or type(prompt[0]) is dict):
        raise _wrong("prompt[0]", "a string, a token id or a list of these", prompt[0])


def _check_tools(route: str, _data: Mapping[str, Any], tools: Any) -> None:
    if route != CHAT:
        return
    if not tools:
        message = "'tools' must not be an empty list: name a tool, or leave the field out"
        raise RequestError(400, message, param="tools")
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if type(tool) is not dict:
            raise _wrong(where, "an object", tool)
        function = tool.get("function")
        if type(function) is not dict:
            raise _wrong(f"{where}.function", "an object", function)
        if type(function.get("name")) is not str:
            raise _wrong(f"{where}.function.name", "a string", function.get("name"))


def _check_tool_choice(route: str, data: Mapping[str, Any], choice: Any) -> None:
    if route == CHAT and choice != "none" and data.get("tools") is None:
        message = "'tool_choice' is only for requests with 'tools'"
        raise RequestError(400, message, param="tool_choice")


def _check_top_logprobs(route: str, data: Mapping[str, Any], wanted: Any) -> None:
    if route == CHAT and wanted and not data.get("logprobs"):
        message = "'top_logprobs' is only for requests with 'logprobs': true"
        raise RequestError(400, message, param="top_logprobs")


def _check_response_format(route: str, _data: Mapping[str, Any], form: Any) -> None:
    if route not in (CHAT, COMPLETIONS):
        return
    if form.get("type") == "json_schema" and form.get("json_schema") is None:
        where = "response_format.json_schema"
        raise RequestError(400, f"the field '{where}' is missing", param=where)


_RULES: Final[dict[str, _Rule]] = {
    "messages": _check_messages,
    "prompt": _check_prompt,
    "input": _check_text,
    "tools": _check_tools,
    "tool_choice": _check_tool_choice,
    "top_logprobs": _check_top_logprobs,
    "response_format": _check_response_format,
}
# By path and field, so that the usual request is done with after few look-ups.
_Known = Mapping[str, tuple[frozenset[type], Field, bool, _Rule | None]]
_NOTHING: Final[_Known] = {}
_KNOWN: Final[dict[str, _Known]] = {
    route: {
        name: (field.types, field, field.bounded, _RULES.get(name))
        for name, field in fields.items()
    }
    for route, fields in FIELDS.items()
}


def _missing(names: tuple[str, ...], data: Mapping[str, Any]) -> RequestError:
    wanted = " or ".join(f"'{name}'" for name in names)
    if names[0] in data:
        return RequestError(400, f"{wanted} must not be null", param=names[0])
    return RequestError(400, f"the field {wanted} is missing", param=names[0])


def _wrong(where: str, expected: str, value: Any) -> RequestError:
    found = kind(value)
    if isinstance(value, str) and expected not in ("an object", "a list"):
        found = f"the string {value[:40]!r}"
    return RequestError(400, f"'{where}' must be {expected}, not {found}", param=where)


def _outside(name: str, field: Field, value: Any) -> RequestError:
    if field.high == float("inf"):
        limit = "greater than 0" if 0 < field.low < 1 else f"at least {field.low}"
    elif 0 < field.low < 1:
        limit = f"greater than 0, and at most {field.high}"
    else:
        limit = f"between {field.low} and {field.high}"
    return RequestError(400, f"'{name}' must be {limit}, not {value}", param=name)
