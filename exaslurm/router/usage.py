"""How many tokens a request took, as the engine says at the end of its answer. Pure."""

from __future__ import annotations

import re
from typing import Final

# Sums of these have to fit into 64 bits, so nothing longer is taken for a count.
_IN: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,10})(?![\d.eE])')
_OUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,10})(?![\d.eE])')

# As vLLM writes it.
_USUAL: Final = re.compile(
    rb'"usage":\s*\{\s*"prompt_tokens":\s*(\d{1,10}),\s*"total_tokens":\s*\d+,'
    rb'\s*"completion_tokens":\s*(\d{1,10})[\s,}]'
)


def usage(answer: bytes) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the answer; None where the engine does not say.

    ``answer`` is a whole body, or the last events of a stream. What looks like it inside a
    text is escaped there, so it is not taken for it.
    """
    at = answer.rfind(b'"usage"')
    if at < 0:
        return None, None
    usual = _USUAL.match(answer, at)
    if usual is not None:
        return int(usual[1]), int(usual[2])
    prompt, completion = _IN.search(answer, at), _OUT.search(answer, at)
    return (
        int(prompt.group(1)) if prompt else None,
        int(completion.group(1)) if completion else None,
    )
