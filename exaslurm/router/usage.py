"""How many tokens a request took, as the engine says near the end of its answer. Pure."""

from __future__ import annotations

import re
from typing import Final

Tokens = tuple[int | None, int | None]
"""Of the prompt and of the answer; None where the engine does not say."""

_NAME: Final = b'"usage"'
# A name, and no text that is the same: what is told follows it.
_KEY: Final = re.compile(rb'"usage"\s*:\s*\{')
# Sums of these have to fit into 64 bits, so nothing longer is taken for a count.
_IN: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,10})(?![\d.eE])')
_OUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,10})(?![\d.eE])')

# As vLLM writes it.
_USUAL: Final = re.compile(
    rb'"usage":\s*\{\s*"prompt_tokens":\s*(\d{1,10}),\s*"total_tokens":\s*\d+,'
    rb'\s*"completion_tokens":\s*(\d{1,10})[\s,}]'
)
# More than there is from the name to the counts.
_KEPT_BYTES: Final = 2048


def usage(answer: bytes) -> Tokens:
    """``answer`` is a whole body, or events of a stream. What looks like it inside a text is
    escaped there, so it is not taken for it; a text that is the name alone is passed over."""
    at, until = answer.rfind(_NAME), len(answer)
    prompt: int | None = None
    completion: int | None = None
    while at >= 0:
        usual = _USUAL.match(answer, at)
        if usual is not None:
            return (
                int(usual[1]) if prompt is None else prompt,
                int(usual[2]) if completion is None else completion,
            )
        if _KEY.match(answer, at) is not None:
            # One event may tell of the prompt, and a later one of the answer.
            prompt = _first(_IN, answer, at, until) if prompt is None else prompt
            completion = _first(_OUT, answer, at, until) if completion is None else completion
            if prompt is not None and completion is not None:
                break
            until = at
        at = answer.rfind(_NAME, 0, at)
    return prompt, completion


def _first(count: re.Pattern[bytes], answer: bytes, at: int, until: int) -> int | None:
    found = count.search(answer, at, until)
    return None if found is None else int(found.group(1))


class Usage:
    """The same for an answer that passes in pieces, of which none is kept. ``told``: so far."""

    __slots__ = ("_last", "told")

    def __init__(self) -> None:
        self.told: Tokens = (None, None)
        self._last = b""

    def passed(self, piece: bytes, *, cut: bool) -> None:
        """The next piece; ``cut``: what is told may go on in the one after it."""
        text = self._last + piece if self._last else piece
        if text.find(_NAME) >= 0:
            prompt, completion = usage(text)
            before = self.told
            self.told = (
                before[0] if prompt is None else prompt,
                before[1] if completion is None else completion,
            )
        self._last = text[-_KEPT_BYTES:] if cut else b""
