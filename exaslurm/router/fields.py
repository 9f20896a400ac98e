"""What values the fields of a request may have, by path, as vLLM 0.32 reads them.

vLLM coerces (pydantic's lax mode: ``"5"`` is an integer, ``"yes"`` a truth value), so do these.
Null, fields that are not listed, and limits that a server can be started with are vLLM's affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"
EMBED = ("/v1/embeddings", "/pooling", "/classify")
RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE = ("/v1/score", "/score")

_TRUTH = frozenset(("0", "1", "f", "t", "false", "true", "off", "on", "n", "y", "no", "yes"))
_ABOVE_ZERO = math.ulp(0.0)
_INT64 = (-float(2**63), float(2**63 - 1))


@dataclass(frozen=True, slots=True)
class Field:
    """``types`` need no second look; for other values ``reads`` decides. Limits are inclusive."""

    expected: str
    types: frozenset[type]
    reads: Callable[[Any], bool]
    low: int | float = -math.inf
    high: int | float = math.inf
    bounded: bool = False

    def within(self, low: int | float, high: int | float = math.inf) -> Field:
        return Field(self.expected, self.types, self.reads, low, high, bounded=True)


def _never(_value: Any) -> bool:
    return False


def _reads_integer(value: Any) -> bool:
    if isinstance(value, str):
        try:
            int(value)
        except ValueError:
            return _reads_number(value) and float(value).is_integer()
        return True
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int)


def _reads_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, (int, float))


def _reads_truth(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _TRUTH
    return isinstance(value, (int, float)) and value in (0, 1)


_EITHER = Field("a string, a list or messages", frozenset((str, list)), lambda _value: True)
_INTEGER = Field("an integer", frozenset((int,)), _reads_integer)
_NUMBER = Field("a number", frozenset((int, float)), _reads_number)
_TRUTH_VALUE = Field("true or false", frozenset((bool,)), _reads_truth)
_TEXT = Field("a string", frozenset((str,)), _never)
_LIST = Field("a list", frozenset((list,)), _never)
_OBJECT = Field("an object", frozenset((dict,)), _never)
_TEXT_OR_LIST = Field("a string or a list", frozenset((str, list)), _never)
_NAME_OR_OBJECT = Field("a string or an object", frozenset((str, dict)), _never)


def _all(field: Field, names: str) -> dict[str, Field]:
    return dict.fromkeys(names.split(), field)


_SAMPLING = {
    "temperature": _NUMBER.within(0),
    "top_p": _NUMBER.within(_ABOVE_ZERO, 1),
    # More than 64 bits reach vLLM's engine and are an error 500 there.
    "top_k": _INTEGER.within(-1, 2**64 - 1),
}
_MORE_SAMPLING = {
    **_SAMPLING,
    "min_p": _NUMBER.within(0, 1),
    "presence_penalty": _NUMBER.within(-2, 2),
    "frequency_penalty": _NUMBER.within(-2, 2),
    "repetition_penalty": _NUMBER.within(_ABOVE_ZERO),
    "seed": _INTEGER.within(*_INT64),
    "priority": _INTEGER.within(*_INT64),
    "stop": _TEXT_OR_LIST,
    **_all(_LIST, "stop_token_ids"),
    **_all(_OBJECT, "logit_bias vllm_xargs kv_transfer_params ec_transfer_params"),
    **_all(_TEXT, "request_id session_id cache_salt user"),
    **_all(_TRUTH_VALUE, "ignore_eos skip_special_tokens include_stop_str_in_output"),
}
_GENERATION = {
    **_MORE_SAMPLING,
    "n": _INTEGER.within(1),
    "min_tokens": _INTEGER.within(0),
    "stream_interval": _INTEGER.within(1, 2**64 - 1),
    "truncate_prompt_tokens": _INTEGER.within(-1),
    "prompt_logprobs": _INTEGER.within(-1),
    "length_penalty": _NUMBER,
    **_all(_INTEGER, "max_tokens thinking_token_budget"),
    **_all(_LIST, "bad_words allowed_token_ids logprob_token_ids"),
    **_all(_OBJECT, "response_format structured_outputs stream_options repetition_detection"),
    **_all(_TRUTH_VALUE, "stream echo use_beam_search add_special_tokens"),
    **_all(_TRUTH_VALUE, "spaces_between_special_tokens"),
    **_all(_TRUTH_VALUE, "return_token_ids return_tokens_as_token_ids"),
}
_TEMPLATE = {
    "chat_template": _TEXT,
    "chat_template_kwargs": _OBJECT,
    **_all(_TRUTH_VALUE, "add_generation_prompt continue_final_message"),
}
_POOLING = {
    "truncate_prompt_tokens": _INTEGER.within(-1),
    "priority": _INTEGER.within(*_INT64),
    "dimensions": _INTEGER,
    "top_n": _INTEGER.within(0),
    **_all(_EITHER, "input messages"),
    "mm_processor_kwargs": _OBJECT,
    **_all(_TEXT, "user request_id cache_salt encoding_format"),
    **_all(_TRUTH_VALUE, "add_special_tokens use_activation"),
}
_TEXT_OR_PART = Field("a string or an object", frozenset((str, dict)), _never)
_TEXTS = Field("a string or a list", frozenset((str, list, dict)), _never)
_RERANK = {**_POOLING, "query": _TEXT_OR_PART, "documents": _TEXTS}
_TOKENIZE = {
    # Which of the two it is decides what else is wrong.
    **_all(_EITHER, "prompt messages"),
    **_all(_TRUTH_VALUE, "add_special_tokens return_token_strs"),
}

FIELDS: dict[str, Mapping[str, Field]] = {
    CHAT: {
        **_GENERATION,
        **_TEMPLATE,
        "max_completion_tokens": _INTEGER,
        "top_logprobs": _INTEGER.within(-1),
        "tool_choice": _NAME_OR_OBJECT,
        "reasoning_effort": _TEXT,
        **_all(_LIST, "messages tools documents"),
        **_all(_OBJECT, "mm_processor_kwargs media_io_kwargs"),
        **_all(_TRUTH_VALUE, "logprobs parallel_tool_calls include_reasoning return_prompt_text"),
    },
    COMPLETIONS: {
        **_GENERATION,
        "prompt": _TEXT_OR_LIST,
        "suffix": _TEXT,
        "logprobs": _INTEGER.within(-1),
    },
    RESPONSES: {
        **_MORE_SAMPLING,
        # vLLM reads an object as the list of its keys; an empty one passes.
        "input": Field("a string or a list", frozenset((str, list, dict)), _never),
        "instructions": _TEXT,
        "previous_response_id": _TEXT,
        "truncation": _TEXT,
        "tool_choice": _NAME_OR_OBJECT,
        **_all(_INTEGER, "max_output_tokens max_tool_calls top_logprobs"),
        **_all(_LIST, "tools include"),
        **_all(_OBJECT, "metadata reasoning text chat_template_kwargs structured_outputs"),
        **_all(_TRUTH_VALUE, "background store stream parallel_tool_calls include_reasoning"),
    },
    MESSAGES: {
        **_SAMPLING,
        "max_tokens": _INTEGER,
        "system": _TEXT_OR_LIST,
        **_all(_LIST, "messages stop_sequences tools"),
        **_all(_OBJECT, "metadata tool_choice thinking output_config chat_template_kwargs"),
        **_all(_TRUTH_VALUE, "stream"),
    },
    COUNT_TOKENS: {
        "system": _TEXT_OR_LIST,
        "tool_choice": _OBJECT,
        **_all(_LIST, "messages tools"),
    },
    **dict.fromkeys(EMBED, _POOLING),
    **dict.fromkeys(RERANK, _RERANK),
    **dict.fromkeys(SCORE, _POOLING),
    TOKENIZE: _TOKENIZE,
    "/detokenize": {"tokens": _LIST},
}
