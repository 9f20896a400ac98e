"""Which class the end of a request belongs to."""

from __future__ import annotations

import pytest

from exaslurm.chaos.asked import Asked, Class, classify, ends_with_error, last_events

DONE = b"data: [DONE]\n\n"
PIECE = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
ERROR = b'data: {"error": {"message": "the engine ended", "type": "BadGatewayError"}}\n\n'
ANSWER = b'{"choices": [{"message": {"content": "x"}}]}'


def stream(tail: bytes, **more: object) -> Asked:
    given = {"stream": True, "asked_s": 1.0, "status": 200, "begun_s": 1.1, "ended_s": 2.0}
    return Asked(**{**given, "tail": tail, **more})  # type: ignore[arg-type]


def plain(tail: bytes, **more: object) -> Asked:
    return stream(tail, **{"stream": False, **more})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (stream(PIECE + DONE), "ok"),
        (plain(ANSWER), "ok"),
        # Whoever reads only the pieces would take this for a short, whole answer.
        (stream(PIECE + ERROR + DONE), "begun_event"),
        (stream(PIECE + ERROR), "begun_event"),
        (stream(PIECE), "begun_cut"),
        (stream(PIECE + b'data: {"error": {"mess', lost=True), "begun_cut"),
        (stream(PIECE + b'data: {"error": "no object"}\n\n'), "begun_cut"),
        (stream(PIECE, late=True), "begun_cut"),
        (stream(b"", begun_s=0.0, lost=True), "not_begun"),
        (stream(b'{"error": {"message": "no replica"}}', status=503, begun_s=0.0), "not_begun"),
        (stream(b"", begun_s=0.0, late=True), "not_begun"),
        # Of a plain answer the client has nothing until it has all.
        (plain(b'{"choices": [{"mess', lost=True), "not_begun"),
        (plain(b'{"error": {"message": "x"}}'), "not_begun"),
        (plain(b"not json"), "not_begun"),
    ],
)
def test_classes(asked: Asked, expected: Class) -> None:
    assert classify(asked) == expected


def test_a_lost_connection_to_a_killed_router_is_its_own_class() -> None:
    lost = stream(PIECE, lost=True)
    assert classify(lost, router_died=True) == "router_lost"
    assert classify(lost) == "begun_cut"
    # A router that was killed explains no answer of an error, and no client's time-out.
    assert classify(stream(b"", status=502, begun_s=0.0), router_died=True) == "not_begun"
    assert classify(stream(b"", begun_s=0.0, late=True), router_died=True) == "not_begun"


def test_events_of_a_tail_that_begins_and_ends_anywhere() -> None:
    assert last_events(b'oices": []}\n\n' + PIECE + DONE)[-1] == b"[DONE]"
    assert len(last_events(b'oices": []}\n\n' + PIECE + DONE)) == 2
    assert last_events(PIECE + b"data: [DON") == []
    assert ends_with_error(ERROR.replace(b"\n", b"\r\n"))
