"""Every path of an engine but /health asks for the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from exaslurm.engines.middleware import KEY_VARIABLE, KeyMiddleware

KEY = "the-key"


async def say_yes(request: Request) -> PlainTextResponse:
    return PlainTextResponse("yes")


async def say_yes_on(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("yes")
    await websocket.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    app = Starlette(
        routes=[
            WebSocketRoute("/v1/realtime", say_yes_on),
            Route("/{path:path}", say_yes, methods=["GET", "POST", "HEAD", "OPTIONS"]),
        ]
    )
    app.add_middleware(KeyMiddleware)  # as vLLM does it
    with TestClient(app) as client:
        yield client


PATHS = ["/v1/chat/completions", "/metrics", "/tokenize", "/pause", "/invocations", "/", "/health/",
         "/Health", "/x/health", "//health"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"X-Api-Key": KEY},
    ],
)
def test_without_the_key_nothing_is_answered(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", PATHS)
def test_with_the_key_everything_is(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={"authorization": f"Bearer {KEY}"})
    assert (answer.status_code, answer.text) == (200, "yes")


def test_two_keys_are_none(client: TestClient) -> None:
    headers: Any = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer wrong")]
    assert client.get("/metrics", headers=headers).status_code == 401


def test_health_is_open(client: TestClient) -> None:
    assert client.get("/health").status_code == 200


def test_websockets_are_guarded_too(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass
    with client.websocket_connect(
        "/v1/realtime", headers={"Authorization": f"Bearer {KEY}"}
    ) as socket:
        assert socket.receive_text() == "yes"


def test_without_a_key_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="must not run unguarded"):
        KeyMiddleware(say_yes)  # type: ignore[arg-type]
