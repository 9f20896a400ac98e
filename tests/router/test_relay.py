"""Answers pass as they come, however they are cut, and end in good form wherever they end."""

from __future__ import annotations

import itertools
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.router.events import EventStream
from exaslurm.router.heads import Memory
from exaslurm.router.relay import Body, Events
from exaslurm.router.upstream import Connection, Endpoint

PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
OWN_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Wire:
    """The transport of a connection that is fed by hand."""

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...


class Line:
    """An engine's connection with a relay behind it, and what comes out for the client."""

    def __init__(self, *, chunks: bool = True) -> None:
        self.out: list[bytes] = []
        self.relay = Events(EventStream(PATH), self.out.append, chunks=chunks)
        self.connection = Connection(Endpoint("http://127.0.0.1:1", None), 2000, Memory())
        self.connection.connection_made(Wire())
        self.connection.receiver = self  # type: ignore[assignment]
        self._held = b""
        self._begun = False

    def received(self, connection: Connection, data: bytes) -> None:
        if connection.head is None:
            return
        if self._begun:
            self.relay.feed(connection, data)
            return
        self._held += connection.body()
        if b"\n\n" in self._held or connection.done:
            self._begun = True
            self.relay.begin(OWN_HEAD if self.relay._chunks else b"", self._held, connection)

    def lost(self, reason: str, *, connected: bool) -> None:
        raise AssertionError(reason)

    def cut(self) -> None:
        if self._begun:
            assert self.relay.broken("lost")
        else:
            self._begun = True
            self.out.append(OWN_HEAD)
            self.relay.broken("lost")


class Client:
    """Reads what came out as an HTTP client does."""

    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    @classmethod
    def read(cls, raw: bytes) -> Client:
        client = cls()
        httptools.HttpResponseParser(client).feed_data(raw)
        return client


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(at)]


EVENT = st.text(alphabet='ab"{}[]:é', max_size=30).map(lambda text: f"data: {text}\n\n".encode())
EVENTS = st.lists(EVENT, min_size=1, max_size=8)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


@given(EVENTS, CUTS, CUTS)
def test_a_whole_stream_passes_unchanged(
    events: list[bytes], in_chunks: list[int], in_packets: list[int]
) -> None:
    text = b"".join(events) + DONE
    raw = HEAD + b"".join(map(chunk, pieces(text, in_chunks))) + b"0\r\n\r\n"
    line = Line()
    for packet in pieces(raw, in_packets):
        line.connection.data_received(packet)
    client = Client.read(b"".join(line.out))
    assert client.body == text
    assert client.complete
    assert line.relay.healthy


@given(EVENTS, CUTS, CUTS, st.integers(0, 2000))
def test_a_cut_stream_ends_in_good_form_wherever_it_is_cut(
    events: list[bytes], in_chunks: list[int], in_packets: list[int], end: int
) -> None:
    text = b"".join(events)
    raw = HEAD + b"".join(map(chunk, pieces(text, in_chunks)))
    arrived = raw[: len(HEAD) + end % (len(raw) - len(HEAD) + 1)]
    line = Line()
    for packet in pieces(arrived, in_packets):
        line.connection.data_received(packet)
    line.cut()
    client = Client.read(b"".join(line.out))
    assert client.complete
    whole, _, error = client.body.partition(b'data: {"error":')
    assert text.startswith(whole)
    assert whole == b"" or whole.endswith(b"\n\n")
    assert error.endswith(DONE)
    assert not line.relay.healthy


@given(EVENTS, CUTS, CUTS)
def test_a_client_without_chunks_gets_the_events_alone(
    events: list[bytes], in_chunks: list[int], in_packets: list[int]
) -> None:
    text = b"".join(events) + DONE
    raw = HEAD + b"".join(map(chunk, pieces(text, in_chunks))) + b"0\r\n\r\n"
    line = Line(chunks=False)
    for packet in pieces(raw, in_packets):
        line.connection.data_received(packet)
    assert b"".join(line.out) == text


def test_the_usual_stream_is_written_as_it_came() -> None:
    line = Line()
    line.connection.data_received(HEAD + chunk(b"data: 1\n\n"))
    packets = [chunk(b"data: 2\n\n") + chunk(b"data: 3\n\n"), chunk(DONE), b"0\r\n\r\n"]
    for packet in packets:
        line.connection.data_received(packet)
    assert all(out is packet for out, packet in zip(line.out[1:], packets, strict=True))


USAGE = b'data: {"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}}\n\n'
ENGINE_ERROR = b'data: {"error": {"code": 500, "message": "lost"}}\n\n'
ODD = (
    chunk(USAGE),
    chunk(ENGINE_ERROR),
    chunk(b"data: half an event"),
    chunk(b"\n\n"),
    chunk(b"x" * 3000 + b"\n\n"),
    chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n"),
    b"0A\r\ndata: 10\n\n\r\n",
    b"a;name=value\r\ndata: 11\n\n\r\n",
    b"A\r\ndata: 12\n\n\r\n",
    # Two that look like one.
    b"6\r\ndata: \r\n4\r\n1\n\n\n\r\n",
)


@given(st.lists(EVENT.map(chunk) | st.sampled_from(ODD), max_size=8))
def test_the_short_way_of_chunks_leads_where_the_long_one_does(packets: list[bytes]) -> None:
    short, long = Line(), Line()
    for packet in (HEAD + chunk(b"data: 0\n\n"), *packets, chunk(DONE), b"0\r\n\r\n"):
        short.connection.data_received(packet)
        long.connection.direct = None
        long.connection.data_received(packet)
    assert b"".join(short.out) == b"".join(long.out)
    assert short.relay.healthy == long.relay.healthy
    assert short.relay.stream.usage.told == long.relay.stream.usage.told


def test_a_chunk_that_comes_alone_is_not_looked_into() -> None:
    line = Line()
    line.connection.data_received(HEAD + chunk(b"data: 0\n\n"))
    line.connection.receiver = None  # whom the long way leads to
    packet = chunk(b"data: 1\n\n")
    line.connection.data_received(packet)
    assert line.out[-1] is packet


def test_a_stream_that_ends_too_early_is_told_so() -> None:
    line = Line()
    for packet in (HEAD + chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), b"0\r\n\r\n"):
        line.connection.data_received(packet)
    client = Client.read(b"".join(line.out))
    assert client.complete
    assert client.body.startswith(b'data: 1\n\ndata: 2\n\ndata: {"error":')
    assert client.body.endswith(DONE)


@pytest.mark.parametrize("chunks", [True, False])
def test_other_bodies_pass_in_their_framing(chunks: bool) -> None:
    out: list[bytes] = []
    body = Body(out.append, chunks=chunks, healthy=True)
    connection: Any = Connection(Endpoint("http://127.0.0.1:1", None), 2000, Memory())
    connection.done = False
    body.begin(
        OWN_HEAD if chunks else b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n", b"abc", connection
    )
    connection.pieces = [b"d", b"ef"]
    connection.done = True
    body.feed(connection, b"")
    client = Client.read(b"".join(out))
    assert (client.body, client.complete) == (b"abcdef", True)
    assert not body.broken("lost")
