"""Hashes of a prompt's blocks."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from exaslurm.router.blocks import EXTENTS, blocks

TEXT = st.integers(0, 20_000).flatmap(lambda size: st.randoms().map(lambda r: r.randbytes(size)))


def test_they_are_the_same_in_every_process_and_version() -> None:
    assert blocks(bytes(300), 0) == [0xA68DFBB1D75C6E8D]
    assert blocks(b"x" + bytes(range(256)) * 2, 1) == [
        0x9408A4433B952D71,
        0xA6FB27C1712EDFE8,
    ]


@given(TEXT, st.integers(0, 2000))
def test_more_text_keeps_the_hashes_of_what_was_there(text: bytes, more: int) -> None:
    keys = blocks(text, 0)
    assert blocks(text + bytes(more), 0)[: len(keys)] == keys


@given(TEXT.filter(lambda text: len(text) >= EXTENTS[1]), st.data())
def test_a_changed_byte_changes_every_hash_from_its_block_on(
    text: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    other = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
    for index, (one, two) in enumerate(zip(blocks(text, 0), blocks(other, 0), strict=True)):
        assert (one == two) == (EXTENTS[index + 1] <= at)


@given(TEXT, st.integers(0, 500))
def test_what_comes_before_the_prompt_does_not_matter(text: bytes, start: int) -> None:
    assert blocks(bytes(start) + text, start) == blocks(text, 0)


@given(TEXT)
def test_all_whole_blocks_are_hashed_and_nothing_else(text: bytes) -> None:
    count = len(blocks(text, 0))
    assert EXTENTS[count] <= len(text) < EXTENTS[count + 1]


def test_blocks_grow_with_the_depth_but_stay_fine_beside_it() -> None:
    assert all(end - begin <= max(256, begin / 8) for begin, end in pairwise(EXTENTS))
    assert len(blocks(bytes(1024), 0)) == 4
    assert len(blocks(bytes(256 * 1024), 0)) == 64
    assert EXTENTS[-1] == 4 * 1024 * 1024
    assert blocks(bytes(EXTENTS[-1] + 1000), 0) == blocks(bytes(EXTENTS[-1]), 0)


def test_the_next_turn_of_a_conversation_begins_with_the_hashes_of_this_one() -> None:
    messages = [{"role": "system", "content": "Be brief. " * 60}]
    known: list[int] = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn}: {'why? ' * 100}"})
        raw = json.dumps({"model": "m", "messages": messages, "stream": turn % 2 == 0}).encode()
        keys = blocks(raw, raw.index(b'"messages"'))
        assert keys[: len(known)] == known
        assert len(keys) > len(known)
        known = keys
        messages.append({"role": "assistant", "content": "Because. " * 80})


def test_a_prompt_shorter_than_a_block_has_none() -> None:
    assert blocks(bytes(255), 0) == blocks(b"", 0) == blocks(b"abc", 5) == []
