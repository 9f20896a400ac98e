"""Words, tokens and vectors of a simulated engine: made up, but the same for the same input."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any

_PREFACE = ("This", "answer", "is", "simulated", ":")
_WORDS = (
    "node", "rack", "cell", "lane", "port", "core", "page", "block", "frame", "queue", "stack",
    "ring", "mesh", "tree", "graph", "shard", "north", "south", "east", "west", "upper", "lower",
    "inner", "outer", "early", "late", "fast", "slow", "warm", "cold", "light", "dark", "reads",
    "writes", "sends", "takes", "holds", "moves", "joins", "splits", "meets", "leaves", "counts",
    "names", "finds", "keeps",
)  # fmt: skip
CHARACTERS_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """A token is four characters here, begun ones included."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def message_text(message: Any) -> str:
    """The text of a chat message; other parts (images, audio) count nothing."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text", "") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def answer_token(seed: bytes, index: int) -> str:
    """The ``index``-th token (a word and a space) of the answer to ``seed``."""
    if index < len(_PREFACE):
        return _PREFACE[index] + " "
    digest = hashlib.blake2b(struct.pack("<q", index), key=seed[:64], digest_size=2).digest()
    return _WORDS[int.from_bytes(digest, "little") % len(_WORDS)] + " "


def seed_of(text: str) -> bytes:
    """What an answer depends on."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=32).digest()


def unit_vector(text: str, dimensions: int) -> Sequence[float]:
    """A vector of length 1 that depends on the text only."""
    needed = dimensions * 4
    raw = hashlib.shake_128(text.encode("utf-8", "replace")).digest(needed)
    values = [number / 2**31 - 1.0 for number in struct.unpack(f"<{dimensions}I", raw)]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]
