"""What pages of other origins may do: anything with their user's key, nothing without one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import pytest

from exaslurm.router.routes import PROXIED
from tests.tools.fleet import INNER, Engine, wait_for
from tests.tools.gateway import Gateway

CHAT = "/v1/chat/completions"
PAGE = {"Origin": "http://elsewhere.example"}
WISH = {
    **PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
}
ALLOW = "access-control-allow-origin"


def test_a_page_may_ask_with_a_key(http: httpx.Client) -> None:
    wish = http.options(CHAT, headers={**WISH, "Authorization": ""})
    assert wish.status_code == 200
    assert wish.headers[ALLOW] == "*"
    assert wish.headers["access-control-allow-headers"] == WISH["Access-Control-Request-Headers"]
    assert "POST" in wish.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in wish.headers


@pytest.mark.parametrize(
    ("status", "changes", "fields"),
    [
        (200, {}, {}),
        (200, {"stream": True}, {}),
        (400, {"messages": []}, {}),
        (404, {"model": "nobody"}, {}),
        (401, {}, {"Authorization": "Bearer wrong"}),
    ],
)
def test_a_page_may_read_each_answer(
    status: int, changes: dict[str, object], fields: dict[str, str], http: httpx.Client
) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    answer = http.post(CHAT, json={**body, **changes}, headers={**PAGE, **fields})
    assert answer.status_code == status
    assert answer.headers.get_list(ALLOW) == ["*"]
    assert ALLOW not in http.post(CHAT, json={**body, **changes}, headers=fields).headers


def test_a_page_may_read_what_the_router_says(http: httpx.Client) -> None:
    for path in ("/v1/models", "/health", "/v1/nothing"):
        assert http.get(path, headers=PAGE).headers[ALLOW] == "*"


def test_without_keys_no_page_may_ask(fast_engines: list[Engine], tmp_path: Path) -> None:
    key = tmp_path / "engine.key"
    key.touch(mode=0o600)
    key.write_text(INNER)
    listed = tmp_path / "engines.yaml"
    listed.write_text(f"key_file: {key}\nengines: ['{fast_engines[0].url}']\n")
    arguments = ("--engines-file", listed, "--port", 0, "--no-auth")
    with (
        contextlib.closing(Gateway(arguments, tmp_path / "log")) as gateway,
        httpx.Client(base_url=gateway.url, trust_env=False, timeout=20) as http,
    ):
        wait_for(lambda: http.get("/ready").status_code == 200)
        wish = http.options(CHAT, headers=WISH)
        assert wish.status_code == 405
        assert ALLOW not in wish.headers
        body = {"model": "chat", "prompt": "x", "max_tokens": 2}
        answer = http.post("/v1/completions", json=body, headers=PAGE)
        assert answer.status_code == 200
        assert ALLOW not in answer.headers
        assert ALLOW not in http.get("/v1/models", headers=PAGE).headers


def test_the_right_method_is_told(http: httpx.Client) -> None:
    for path in PROXIED:
        for method in ("GET", "OPTIONS", "DELETE"):
            answer = http.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
