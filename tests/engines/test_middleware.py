"""Every path of an engine but /health asks for the key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from exaslurm.engines import middleware
from exaslurm.engines.middleware import (
    HELD_PATH,
    KEY_VARIABLE,
    REPLICA_VARIABLE,
    TOKEN_PATHS,
    KeyMiddleware,
)
from exaslurm.keys.token import Claims, TokenSigner

KEY = "the-key"
REPLICA = "c000-r0000"
BODY = b'{"model": "chat"}'
# Of the recorded ones: an engine that generates has no others for clients.
CLIENT_PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
}

SIMULATED_PATHS = (
    "/ping",
    "/version",
    "/load",
    "/metrics",
    "/v1/models",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/tokenize",
    "/v1/chat/completions",
    "/x",
)


def token(*, key: str = KEY, replica: str = REPLICA, seconds: int = 60) -> str:
    claims = Claims(
        key_name="alice",
        replica=replica,
        models=("chat",),
        expires_at_s=int(time.time()) + seconds,
    )
    return TokenSigner(key).sign(claims)


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def ask(
    client: httpx.Client,
    path: str,
    credential: str,
    body: bytes | Iterable[bytes] = BODY,
) -> httpx.Response:
    headers = {**bearer(credential), "Content-Type": "application/json"}
    return client.post(path, headers=headers, content=body)


async def say_yes(request: Request) -> PlainTextResponse:
    return PlainTextResponse("yes")


async def say_yes_on(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("yes")
    await websocket.close()


async def echo(request: Request) -> Response:
    return Response(await request.body())


@contextlib.contextmanager
def guarded(monkeypatch: pytest.MonkeyPatch, replica: str | None = REPLICA) -> Iterator[TestClient]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    if replica is not None:
        monkeypatch.setenv(REPLICA_VARIABLE, replica)
    app = Starlette(
        routes=[
            WebSocketRoute("/v1/realtime", say_yes_on),
            Route("/pooling", echo, methods=["POST"]),
            Route("/{path:path}", say_yes, methods=["GET", "POST", "HEAD", "OPTIONS"]),
        ]
    )
    app.add_middleware(KeyMiddleware)  # as vLLM does it
    with TestClient(app) as client:
        yield client


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with guarded(monkeypatch) as client:
        yield client


def test_it_tells_how_many_requests_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of which the engine itself knows nothing yet."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    seen: list[int] = []

    async def held() -> int:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", b"Bearer " + KEY.encode())]
        scope = {"type": "http", "method": "GET", "path": HELD_PATH, "headers": headers}
        await guard(scope, nothing, send)
        assert sent[0]["status"] == 200
        found: int = json.loads(sent[1]["body"])["held"]
        return found

    async def nothing() -> Any:
        raise AssertionError("nobody reads")

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await held())
        if scope["path"] == "/broken":
            raise ValueError("broken")

    guard = KeyMiddleware(engine)

    async def ask_all() -> int:
        for method, path in (("GET", "/metrics"), ("POST", "/v1/completions"), ("POST", "/broken")):
            headers = [(b"authorization", b"Bearer " + KEY.encode())]
            scope = {"type": "http", "method": method, "path": path, "headers": headers}
            with contextlib.suppress(ValueError):
                await guard(scope, nothing, nothing)
        return await held()

    assert asyncio.run(ask_all()) == 0
    assert seen == [0, 1, 1]


def test_how_many_it_holds_is_for_those_with_the_key(client: TestClient) -> None:
    assert client.get(HELD_PATH).status_code == 401
    assert client.get(HELD_PATH, headers=bearer(token())).status_code == 401
    assert client.get(HELD_PATH, headers=bearer(KEY)).json() == {"held": 0}


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


def test_every_recorded_path_of_vllm_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All routes of a real engine, in its development mode."""
    data = os.environ.get("EXASLURM_DATA")
    if not data:
        pytest.skip("EXASLURM_DATA is not set")
    routes = recorded_routes(Path(data) / "vllm-0.32" / "routes.txt")
    assert len(routes) > 50
    with guarded(monkeypatch) as client:
        open_ones = {
            path
            for method, path in routes
            if client.request(method, path.replace("{response_id}", "resp_1")).status_code != 401
        }
        assert open_ones == {"/health"}
        opened = {
            path
            for method, path in routes
            if client.request(
                method,
                path.replace("{response_id}", "resp_1"),
                headers={"Authorization": f"Bearer {token()}"},
                content=BODY,
            ).status_code
            == 200
        }
    assert opened == {"/health", "/v1/models", *CLIENT_PATHS}


def recorded_routes(file: Path) -> list[tuple[str, str]]:
    found = re.findall(r"^(/\S*), Methods: (.+)$", file.read_text(), re.MULTILINE)
    return [(method, path) for path, methods in found for method in methods.split(", ")]


class TestTokens:
    def test_a_token_opens_the_paths_of_clients(self, client: TestClient) -> None:
        for path in TOKEN_PATHS - {"/pooling"}:
            answer = ask(client, path, token())
            assert (answer.status_code, answer.text) == (200, "yes")
        assert client.get("/v1/models", headers=bearer(token())).status_code == 200

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/sleep"),
            ("POST", "/pause"),
            ("POST", "/v1/load_lora_adapter"),
            ("POST", "/collective_rpc"),
            ("GET", "/metrics"),
            ("GET", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("POST", "/invocations"),
            ("POST", "/v1/audio/transcriptions"),
            ("GET", "/v1/chat/completions"),
            ("POST", "/v1/models"),
            ("POST", "/v1/chat/completions/"),
            ("POST", "//v1/chat/completions"),
            ("GET", "/"),
        ],
    )
    def test_it_opens_nothing_else(self, client: TestClient, method: str, path: str) -> None:
        answer = client.request(method, path, headers=bearer(token()), content=BODY)
        assert answer.status_code == 401
        assert "paths that are for clients" in answer.text

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"replica": "c000-r0001"}, "for another replica"),
            ({"seconds": -3600}, "expired"),
            ({"seconds": 30 * 86400}, "too long"),
            ({"key": "another"}, "signature is wrong"),
        ],
    )
    def test_whose_and_for_how_long(
        self, client: TestClient, changes: dict[str, Any], says: str
    ) -> None:
        answer = ask(client, "/v1/chat/completions", token(**changes))
        assert answer.status_code == 401
        assert says in answer.json()["error"]["message"]

    def test_other_models_of_the_engine_stay_closed(self, client: TestClient) -> None:
        answer = ask(client, "/v1/chat/completions", token(), b'{"model": "secret-adapter"}')
        assert answer.status_code == 403
        assert answer.json()["error"]["param"] == "model"
        assert "The token is for chat, not for" in answer.json()["error"]["message"]
        twice = b'{"model": "chat", "model": "secret-adapter"}'
        assert ask(client, "/v1/chat/completions", token(), twice).status_code == 403

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"{}",
            b'{"model": null}',
            b'{"model": ""}',
            b'{"model": ["chat"]}',
            b"\xff\xfe",
            b"[" * 50_000,
        ],
    )
    def test_without_a_model_the_engine_would_take_its_own(
        self, client: TestClient, body: bytes
    ) -> None:
        assert ask(client, "/v1/completions", token(), body).status_code == 400

    def test_the_body_reaches_the_engine_unchanged(self, client: TestClient) -> None:
        def parts() -> Iterator[bytes]:
            yield b'{"model" : "chat",'
            yield b' "prompt": "' + b"x" * 300_000 + b'"}\n'

        answer = ask(client, "/pooling", token(), parts())
        assert answer.content == b"".join(parts())

    def test_a_body_without_end_is_cut_off(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(middleware, "_MAX_BODY_BYTES", 1000)
        answer = ask(client, "/v1/completions", token(), b"x" * 2000)
        assert answer.status_code == 413

    def test_no_token_without_the_name_of_the_replica(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(REPLICA_VARIABLE, raising=False)
        with guarded(monkeypatch, replica=None) as client:
            assert ask(client, "/v1/completions", token(replica="")).status_code == 401
            assert client.get("/metrics", headers=bearer(KEY)).status_code == 200

    def test_not_for_websockets(self, client: TestClient) -> None:
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("/v1/realtime", headers=bearer(token())),
        ):
            pass


async def test_a_client_that_leaves_before_its_request_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv(REPLICA_VARIABLE, REPLICA)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def never(*_: Any) -> None:
        raise AssertionError

    headers = [(b"authorization", f"Bearer {token()}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    await KeyMiddleware(never)(scope, receive, never)
    assert not messages


def test_the_simulated_engine_is_guarded_the_same() -> None:
    """A process as deployments start it: every path that it has, and some that vLLM has."""
    environ = {**os.environ, KEY_VARIABLE: KEY, REPLICA_VARIABLE: REPLICA}
    command = [sys.executable, "-m", "exaslurm.engines.simulated", "--port", "0",
               "--served-model-name", "chat", "--decode-tokens-per-s", "1000"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
                for path in SIMULATED_PATHS:
                    for method in ("GET", "POST"):
                        assert client.request(method, path).status_code == 401, path
                assert client.get("/health").status_code == 200
                body = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
                assert ask(client, "/v1/chat/completions", token(), body).status_code == 200
                assert client.post("/sleep", headers=bearer(token())).status_code == 401
        finally:
            process.terminate()
