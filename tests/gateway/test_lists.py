"""Engines of a list: one that dies and comes back, and being called directly."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.tools.fleet import INNER, Engine, engines, wait_for
from tests.tools.gateway import Gateway

KEY = "the-one-key"
BODY = {"model": "chat", "prompt": "x", "max_tokens": 2}


def test_it_is_left_alone_at_once_and_used_again_within_two_seconds(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    key = tmp_path / "engine.key"
    key.write_text(INNER)
    key.chmod(0o600)
    listed = tmp_path / "engines.yaml"
    with engines((), ()) as (first, second):
        listed.write_text(f"key_file: {key}\nengines: ['{first.url}', '{second.url}']\n")
        router = gateway("--engines-file", listed, EXASLURM_ROUTER_KEY=KEY)
        with httpx.Client(
            base_url=router.url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False
        ) as http:

            def ready() -> int:
                return int(http.get("/status").json()["source"]["states"].get("ready", 0))

            def asked_of(engine: Engine) -> int:
                name = {"X-Exaslurm-Replica": engine.url.removeprefix("http://")}
                return http.post("/v1/completions", json=BODY, headers=name).status_code

            wait_for(lambda: ready() == 2)
            first.kill()
            statuses = {http.post("/v1/completions", json=BODY).status_code for _ in range(40)}
            assert statuses == {200}
            wait_for(lambda: ready() == 1, timeout_s=2)
            again = Engine(port=first.port)
            try:
                came_s = time.monotonic()
                wait_for(lambda: asked_of(again) == 200)
                assert time.monotonic() - came_s < 2
                assert ready() == 2
            finally:
                again.close()


def test_direct_mode_is_a_limit_of_the_router(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    with engines(()) as (engine,):
        (tmp_path / "key").write_text(INNER)
        (tmp_path / "key").chmod(0o600)
        listed = tmp_path / "engines.yaml"
        listed.write_text(f"key_file: {tmp_path}/key\nengines: ['{engine.url}']\n")
        for limits, status in (((), 404), (("--limit", "direct_s=30"), 200)):
            router = gateway("--engines-file", listed, *limits, EXASLURM_ROUTER_KEY=KEY)
            headers = {"Authorization": f"Bearer {KEY}"}
            with httpx.Client(base_url=router.url, headers=headers, trust_env=False) as http:
                wait_for(lambda http=http: http.get("/ready").status_code == 200)
                answer = http.post("/v1/direct", json={"seconds": 20})
                assert answer.status_code == status
        assert answer.json()["url"] == engine.url
    assert gateway("--engines-file", listed, "--limit", "direct_s=1e9").end() == 2
