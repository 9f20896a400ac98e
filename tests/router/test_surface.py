"""What the router answers itself, and what it refuses."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable

import httpx
import pytest

from exaslurm.router import app, exposition
from exaslurm.router.exposition import Family
from tests.tools.fleet import Engine, Router, wait_for


def _is_openai_error(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status
    message: str = error["message"]
    return message


def test_health_and_ready(make_router: Callable[..., Router], fast_engines: list[Engine]) -> None:
    router = make_router()
    assert router.stranger.get("/health").status_code == 200
    answer = router.stranger.get("/ready")
    _is_openai_error(answer, 503)
    assert int(answer.headers["retry-after"]) > 0
    router.replace(fast_engines[0].replica("c000-r0000"))
    assert router.stranger.get("/ready").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/status", "/v1/models/chat"])
def test_pages_need_a_key(router: Router, http: httpx.Client, path: str) -> None:
    message = _is_openai_error(router.stranger.get(path), 401)
    assert "Authorization: Bearer" in message
    assert http.get(path).status_code == 200


def test_the_page_of_figures_is_not_written_in_the_event_loop(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of models it has megabytes. Nor are several written at a time."""
    threads: list[int] = []
    at_work = threading.Lock()

    def render(families: Iterable[Family]) -> bytes:
        assert at_work.acquire(blocking=False)
        threads.append(threading.get_ident())
        try:
            return exposition.render(families)
        finally:
            at_work.release()

    monkeypatch.setattr(app, "render", render)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda _: router.http.get("/metrics"), range(24)))
    assert {page.status_code for page in pages} == {200}
    assert len(threads) == 24
    loop: list[int] = []
    router.call(lambda: loop.append(threading.get_ident()))
    wait_for(lambda: loop)
    assert loop[0] not in threads


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer exa-wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"X-Api-Key": "wrong"},
    ],
)
def test_proxied_paths_need_a_key(router: Router, headers: dict[str, str]) -> None:
    for path in ("/v1/chat/completions", "/tokenize", "/v1/embeddings"):
        answer = router.stranger.post(path, headers=headers, json={"model": "chat"})
        _is_openai_error(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_in_anthropics_header(router: Router) -> None:
    answer = router.stranger.post(
        "/tokenize", headers={"X-Api-Key": router.key}, json={"prompt": "x"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", b"{", "not JSON"),
        ("/v1/chat/completions", b"", "not JSON"),
        ("/v1/chat/completions", b"\xff\xfe\xfd", "not JSON"),
        ("/v1/chat/completions", b"[" * 100_000, "nested too deeply"),
        ("/v1/chat/completions", b"[]", "must be a JSON object, not a list"),
        ("/v1/chat/completions", b'{"model": 7}', "'model' must be a string, not a number"),
        ("/v1/chat/completions", b'{"model": "chat"}', "'messages' is missing"),
        ("/v1/chat/completions", b'{"messages": null}', "'messages' must not be null"),
        ("/v1/completions", b'{"model": "chat"}', "'prompt' or 'prompt_embeds' is missing"),
    ],
)
def test_bodies_that_no_engine_understands(
    http: httpx.Client, path: str, body: bytes, words: str
) -> None:
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert words in _is_openai_error(answer, 400)


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    assert "/v1/nope" in _is_openai_error(http.get("/v1/nope"), 404)
    assert "GET" in _is_openai_error(http.get("/v1/chat/completions"), 405)
    for path in ("/sleep", "/pause", "/collective_rpc", "/v1/load_lora_adapter"):
        _is_openai_error(http.post(path), 404)


def test_a_body_over_the_limit(
    make_router: Callable[..., Router], fast_engines: list[Engine]
) -> None:
    router = make_router(*fast_engines, max_body_bytes=1000)
    headers = {"Authorization": f"Bearer {router.key}", "Content-Type": "application/json"}
    url = router.url + "/v1/completions"
    fits = b'{"prompt": "' + b"x" * 900 + b'"}'
    assert router.stranger.post(url, content=fits, headers=headers).status_code == 200
    large = b'{"prompt": "' + b"x" * 1000 + b'"}'
    assert "1000 bytes" in _is_openai_error(
        router.stranger.post(url, content=large, headers=headers), 413
    )
    pieces = (large[at : at + 100] for at in range(0, len(large), 100))
    _is_openai_error(router.stranger.post(url, content=pieces, headers=headers), 413)


def test_a_missing_model_is_fine_with_one_shard_only(
    make_router: Callable[..., Router], fast_engines: list[Engine]
) -> None:
    one, two = fast_engines
    router = make_router(one, two)
    headers = {"Authorization": f"Bearer {router.key}"}
    url = router.url + "/v1/completions"
    assert router.stranger.post(url, json={"prompt": "x"}, headers=headers).status_code == 200
    other = dataclasses.replace(two.replica("c000-r0001"), served_names=("other",))
    router.replace(one.replica("c000-r0000"), other)
    answer = router.stranger.post(url, json={"prompt": "x"}, headers=headers)
    assert "chat, chat:base, other" in _is_openai_error(answer, 400)


def test_nothing_ready_is_503_and_says_what_there_is(
    make_router: Callable[..., Router], fast_engines: list[Engine]
) -> None:
    router = make_router()
    headers = {"Authorization": f"Bearer {router.key}"}
    url = router.url + "/v1/completions"
    body = {"model": "chat", "prompt": "x"}
    answer = router.stranger.post(url, json=body, headers=headers)
    assert "no model is served yet" in _is_openai_error(answer, 503)
    engine = fast_engines[0]
    for changes in (
        {"ready": False, "state": "loading"},
        {"draining": True, "state": "draining"},
        {"sleeping": True, "state": "ready"},
    ):
        router.replace(engine.replica("c000-r0000", **changes))
        answer = router.stranger.post(url, json=body, headers=headers)
        assert str(changes["state"]) in _is_openai_error(answer, 503)
        assert answer.headers["retry-after"]
        models = router.http.get("/v1/models").json()
        assert models["data"] == []
    router.replace(engine.replica("c000-r0000"))
    assert router.stranger.post(url, json=body, headers=headers).status_code == 200


def test_metrics_and_status(http: httpx.Client) -> None:
    for _ in range(3):
        http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    http.post("/v1/completions", json={"model": "a" * 40, "prompt": "x"})
    page = http.get("/metrics").text
    count = re.search(
        r'^exaslurm_router_requests_total\{model="chat",route="/v1/completions",status="200"\} 3',
        page,
        re.MULTILINE,
    )
    assert count, page
    assert "aaaa" not in page  # what clients make up does not become a label
    assert re.search(
        r'^exaslurm_router_replicas\{model="chat",state="usable"\} 2', page, re.MULTILINE
    )
    assert re.search(r'^exaslurm_router_outstanding\{model="chat"\} 0', page, re.MULTILINE)
    status = http.get("/status").json()
    assert status["schema"] == "exaslurm/router/1"
    assert [item["breaker"] for item in status["replicas"]] == ["closed", "closed"]
    assert status["models"][0]["ready"] == 2
