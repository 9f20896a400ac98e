"""The small client of ``chat``: streams, refusals, broken answers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from exaslurm.cli.openai_http import ChatClient
from exaslurm.errors import NotReadyError, UserError

Serve = Callable[[int, bytes], ChatClient]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that gives one answer to everything, and then closes the connection."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(status: int, body: bytes, promised: int | None = None) -> ChatClient:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                assert self.headers["Authorization"] == "Bearer exa-key"
                self.send_response(status)
                self.send_header("Content-Length", str(promised or len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return ChatClient(f"http://127.0.0.1:{server.server_port}/v1", "exa-key")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def events(*items: Any) -> bytes:
    lines = [f"data: {item if isinstance(item, str) else json.dumps(item)}" for item in items]
    return ("\n\n".join(lines) + "\n\n").encode()


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def test_pieces_come_in_order(serve: Serve) -> None:
    body = b": comment\n\n" + events(
        {"choices": [{"delta": {"role": "assistant"}}]}, piece("Hel"), piece("lo \u00fc"),
        {"choices": [], "usage": {}}, "[DONE]", piece("late"),
    )  # fmt: skip
    assert "".join(serve(200, body).stream([], {})) == "Hello \u00fc"


def test_an_error_event_ends_the_answer(serve: Serve) -> None:
    client = serve(200, events(piece("Hel"), {"error": {"message": "the replica was lost"}}))
    stream = client.stream([], {})
    assert next(stream) == "Hel"
    with pytest.raises(NotReadyError, match="broke off: the replica was lost"):
        next(stream)


def test_the_first_model(serve: Serve) -> None:
    assert serve(200, b'{"data": [{"id": "m"}, {"id": "m:base"}]}').first_model() == "m"


def test_no_model_yet(serve: Serve) -> None:
    with pytest.raises(NotReadyError, match="serves no model yet"):
        serve(200, b'{"data": []}').first_model()


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (401, b'{"error": {"message": "unknown key"}}', UserError, "does not know this key"),
        (404, b'{"error": {"message": "no model x"}}', UserError, "no model x"),
        (400, b'{"error": {"message": "bad field"}}', UserError, "bad field"),
        (503, b'{"error": {"message": "no replica"}}', NotReadyError, "answered 503: no replica"),
        (502, b"<html>proxy</html>", NotReadyError, "<html>proxy</html>"),
    ],
)
def test_refusals(serve: Serve, status: int, body: bytes, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        serve(status, body).ask([], {})


def test_nobody_listens() -> None:
    with pytest.raises(NotReadyError, match="no answer from the router at"):
        ChatClient("http://127.0.0.1:9/v1", "exa-key").first_model()


@pytest.mark.parametrize("base", ["ftp://x/v1", "nonsense", "http://[::1", "http://x:99999/v1"])
def test_addresses_that_are_none(base: str) -> None:
    with pytest.raises(UserError, match="is no address of a router"):
        ChatClient(base, "exa-key").first_model()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"data": 7}', b'{"data": [1]}'])
def test_other_servers(serve: Serve, body: bytes) -> None:
    with pytest.raises(UserError, match="is no OpenAI server"):
        serve(200, body).first_model()


def test_an_event_that_is_none(serve: Serve) -> None:
    client = serve(200, b"data: {\n\n")
    with pytest.raises(NotReadyError, match="is no event"):
        list(client.stream([], {}))


@pytest.mark.parametrize("key", ["exa-\nX: y", "exa-\xe9", "exa-\u4e2d"])
def test_damaged_keys(serve: Serve, key: str) -> None:
    client = ChatClient(serve(200, b"{}").base, key)
    with pytest.raises(UserError, match="the key is damaged"):
        client.first_model()
