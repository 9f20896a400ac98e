"""A prompt as a chain of block hashes, straight from the request's bytes. Pure.

Two requests whose texts begin alike have the same first hashes, in every router process. Engines
cache whole blocks of tokens from the beginning on; the bytes of the body are as good as tokens to
tell how far two prompts agree, and nothing has to be parsed or encoded. Blocks grow with the
depth, so that a long prompt costs few hashes and a short one is still told from its neighbours:
no length is further from the last boundary before it than an eighth of itself, or 256 bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

_FIRST_BYTES: Final = 256
_COPIED_BYTES: Final = 16 * 1024
_PER_DOUBLING: Final = 8
_DOUBLINGS: Final = 11


def _extents() -> tuple[int, ...]:
    ends = [_FIRST_BYTES * index for index in range(_PER_DOUBLING + 1)]
    for doubling in range(_DOUBLINGS):
        step = _FIRST_BYTES << doubling
        begin = ends[-1]
        ends += [begin + step * index for index in range(1, _PER_DOUBLING + 1)]
    return tuple(ends)


EXTENTS: Final = _extents()
"""Bytes of prompt that the first 0, 1, 2, ... blocks cover. What lies beyond the last one, 4 MiB,
is not looked at."""

_BLOCKS: Final = tuple(slice(*ends) for ends in pairwise(EXTENTS))


def blocks(raw: bytes, start: int) -> list[int]:
    """Chained 64-bit hashes of the whole blocks of ``raw`` from the offset ``start`` (bytes) on.

    The rest that does not fill a block is left out: in the next turn of a conversation it is
    followed by other text.
    """
    room = len(raw) - start
    keys: list[int] = []
    if room < _FIRST_BYTES:
        return keys
    key = 0
    # Slices of a view copy nothing, but cost more by themselves.
    text = raw[start:] if room <= _COPIED_BYTES else memoryview(raw)[start:]
    for block in _BLOCKS[: bisect_right(EXTENTS, room) - 1]:
        key = xxh3_64_intdigest(text[block], key)
        keys.append(key)
    return keys
