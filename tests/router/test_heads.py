"""Heads that come again: what is remembered of one is what a parser would say of the next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.router.heads import AnswerHead, Memory, RequestHead
from exaslurm.router.upstream import whole_chunks

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nAuthorization: Bearer k\r\n\r\n"
)


class Parsed:
    """What llhttp finds in the first message of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.body = b""
        self.complete = 0
        self.parser: Any = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete += 1

    def head(self) -> RequestHead:
        return RequestHead("/x", self.url, self.headers, keep_alive=True, chunks=True)


def request(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def taught(data: bytes) -> tuple[Memory[RequestHead], RequestHead]:
    memory: Memory[RequestHead] = Memory()
    head = Parsed(data).head()
    memory.learn(data, head)
    return memory, head


def test_the_same_head_with_another_length_is_known() -> None:
    memory, head = taught(request(b"{}"))
    assert memory.find(request(b'{"model": "m"}')) == (head, b'{"model": "m"}')
    assert memory.find(request(b"")) == (head, b"")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],  # the rest is under way
        lambda data: data + b"x",  # the next one has begun
        lambda data: data + data,
        lambda data: data.replace(b"Bearer k", b"Bearer l"),
        lambda data: data.replace(b"/chat/", b"/cha\t/"),
        lambda data: data.replace(b"Length: 2", b"Length: +2"),
        lambda data: data.replace(b"Length: 2", b"Length:  2"),
        lambda data: data.replace(b"Length: 2", b"Length: 2 "),
        lambda data: data.replace(b"Length: 2\r\n", b"Length: 2\r\nContent-Length: 2\r\n"),
        lambda data: data.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        lambda data: b"\r\n" + data,
    ],
)
def test_anything_else_is_for_the_parser(change: Callable[[bytes], bytes]) -> None:
    memory, _ = taught(request(b"{}"))
    assert memory.find(change(request(b"{}"))) is None


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"Host: a", b"Host: a\r\n b"),  # folded
        HEAD.replace(b"\r\nHost", b"\nHost"),
        HEAD.replace(b"Content-Length: %d\r\n", b"X-Strength: 7\r\nContent-Length: %d\r\n"),
        HEAD.replace(b"Host: a", b"Host: " + b"a" * 3000),
    ],
)
def test_an_odd_head_is_not_remembered(head: bytes) -> None:
    try:
        memory, _ = taught(request(b"{}", head))
    except httptools.HttpParserError:
        return  # never reaches the memory
    assert memory.find(request(b"{}", head)) is None


def test_the_memory_is_bounded() -> None:
    memory: Memory[RequestHead] = Memory()
    for number in range(2000):
        data = request(b"{}", HEAD.replace(b"Host: a", b"Host: a%d" % number))
        memory.learn(data, Parsed(data).head())
        assert memory.find(data) is not None
        assert len(memory._known) <= 512


NAMES = st.sampled_from([b"Host", b"X-Strength", b"content-length", b"Content-Length", b"X-A"])
VALUES = st.sampled_from([b"2", b"11", b"a: ength: 3", b"ength: 2", b"", b"0x2", b"2, 2"])
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r\n "])
LINES = st.lists(st.tuples(NAMES, VALUES, ENDS), max_size=5)
BODIES = st.sampled_from([b"", b"{}", b"a\r\n\r\nb", b"ength: 2\r\n\r\n{}", b"hello world"])


def text(lines: list[tuple[bytes, bytes, bytes]], body: bytes) -> bytes:
    fields = b"".join(b"%b: %b%b" % line for line in lines)
    return b"POST /x HTTP/1.1\r\n" + fields + b"\r\n" + body


@given(LINES, BODIES, LINES, BODIES)
def test_what_is_found_is_what_the_parser_finds(
    lines: list[tuple[bytes, bytes, bytes]],
    body: bytes,
    others: list[tuple[bytes, bytes, bytes]],
    another: bytes,
) -> None:
    memory: Memory[RequestHead] = Memory()
    data = text(lines, body)
    try:
        parsed = Parsed(data)
    except httptools.HttpParserError:
        return
    if parsed.complete != 1 or not any(name == b"content-length" for name, _ in parsed.headers):
        return  # the router does not remember such
    memory.learn(data, parsed.head())
    for again in (data, text(lines, another), text(others, body), text(others, another)):
        found = memory.find(again)
        if found is None:
            continue
        same = Parsed(again)
        assert (same.complete, same.body) == (1, found[1])
        without = [field for field in same.headers if field[0] != b"content-length"]
        assert without == [f for f in found[0].headers if f[0] != b"content-length"]


def test_the_head_of_an_answer() -> None:
    fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"date", b"now")]
    head = AnswerHead(200, fields)
    assert (head.events, head.dated, head.length, head.chunked) == (True, True, None, False)
    assert AnswerHead(200, [*fields, (b"content-encoding", b"gzip")]).events is False
    assert AnswerHead(204, []).length == 0
    assert AnswerHead(200, [(b"transfer-encoding", b"gzip, Chunked")]).chunked
    assert not AnswerHead(200, [(b"transfer-encoding", b"identity")]).chunked
    assert not AnswerHead(200, [(b"transfer-encoding", b"chunked, gzip")]).chunked
    with pytest.raises(ValueError, match="invalid literal"):
        AnswerHead(200, [(b"content-length", b"many")])


@pytest.mark.parametrize("status", [204, 304])
def test_the_head_of_an_answer_without_a_body_is_not_remembered(status: int) -> None:
    memory: Memory[AnswerHead] = Memory()
    answer = b"HTTP/1.1 %d No\r\ncontent-length: 5\r\n\r\n" % status
    memory.learn(answer, AnswerHead(status, [(b"content-length", b"5")]))
    assert memory.find(answer + b"hello") is None


def framed(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8))
def test_whole_chunks(pieces: list[bytes]) -> None:
    data = framed(pieces)
    assert whole_chunks(data) == pieces
    cut = random.Random(len(data)).randrange(1, len(data))
    part = whole_chunks(data[:cut])
    assert part is None or framed(part) == data[:cut]


@pytest.mark.parametrize(
    "data",
    [
        b"0\r\n\r\n",
        b"2\r\nab\r\n0\r\n\r\n",
        b"2;ext=1\r\nab\r\n",
        b"0x2\r\nab\r\n",
        b"+2\r\nab\r\n",
        b" 2\r\nab\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"02\r\nab\r\n",
        b"2\nab\r\n",
        b"2\r\nabc\r\n",
        b"3\r\nab\r\n",
        b"g\r\nab\r\n",
        b"ffffffffff\r\nab\r\n",
        b"\r\n",
        b"2",
    ],
)
def test_other_chunks_are_for_the_parser(data: bytes) -> None:
    assert whole_chunks(data) is None
