"""What a running router counts and records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from exaslurm.router.audit import Audit
from exaslurm.router.audit_check import verify
from exaslurm.router.audit_read import read
from exaslurm.router.direct import DirectSettings
from tests.tools.fleet import Engine, Router, wait_for

BODY = {"model": "chat", "prompt": "what becomes of it", "max_tokens": 5}


def ask(router: Router, **body: Any) -> httpx.Response:
    return router.http.post("/v1/completions", json={**BODY, **body})


def figures(router: Router, name: str) -> list[tuple[str, float]]:
    """Labels and value of each sample of a metric."""
    page = router.http.get("/metrics").text
    pattern = rf"^exaslurm_router_{name}(?:\{{(.*)\}})? (\S+)$"
    return [(labels, float(n)) for labels, n in re.findall(pattern, page, re.MULTILINE)]


def test_every_request_is_recorded_and_counted(
    make_router: Callable[..., Router], fast_engines: list[Engine], tmp_path: Path
) -> None:
    audit = Audit(tmp_path / "audit", secret="secret", host="here", flush_s=0.01)
    audit.start()
    router = make_router(*fast_engines, audit=audit)
    plain = ask(router)
    assert plain.status_code == 200
    with router.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
        streamed = b"".join(answer.iter_bytes())
    assert ask(router, model="nobody").status_code == 404
    assert router.stranger.post("/v1/completions", json=BODY).status_code == 401
    assert router.http.post("/v1/completions", content=b"{").status_code == 400
    with router.http.stream(
        "POST", "/v1/completions", json={**BODY, "max_tokens": 2000, "stream": True}
    ) as answer:
        next(answer.iter_bytes())
    wait_for(lambda: figures(router, "in_flight") == [("", 0.0)])
    assert sum(n for _, n in figures(router, "requests_total")) == 6
    assert figures(router, "unserved_total")
    router.close()
    audit.close()

    (report,) = verify(tmp_path / "audit", "secret")
    assert report.findings == []
    records = [record for record in read(tmp_path / "audit") if record["kind"] == "request"]
    assert [record["status"] for record in records] == [200, 200, 404, 401, 400, 499]
    assert [record["key"] for record in records] == ["tester"] * 3 + [None] + ["tester"] * 2
    first, second, unknown, stranger, malformed, left = records
    assert first["id"] == plain.headers["x-request-id"]
    assert first["replica"] == plain.headers["x-exaslurm-replica"]
    assert (first["route"], first["model"], first["stream"]) == ("/v1/completions", "chat", False)
    usage = plain.json()["usage"]
    assert first["prompt_tokens"] == usage["prompt_tokens"]
    assert first["completion_tokens"] == usage["completion_tokens"] == 5
    assert first["bytes_in"] == len(plain.request.content)
    assert 0 < first["bytes_out"] - len(plain.content) < 1000  # the head
    assert first["cause"] == ""
    assert abs(first["time_ms"] / 1000 - time.time()) < 60
    assert 0 < first["ttft_ms"] <= first["duration_ms"] < 20_000
    assert second["stream"]
    assert second["bytes_out"] >= len(streamed)
    assert (unknown["model"], unknown["replica"], unknown["cause"]) == ("-", "", "model")
    assert (stranger["cause"], malformed["cause"]) == ("key", "refused")
    assert left["cause"] == "client_left"
    raw = b"".join(path.read_bytes() for path in (tmp_path / "audit").iterdir())
    assert b"what becomes of it" not in raw
    assert router.key.encode() not in raw


def test_a_grant_of_direct_mode_is_recorded(
    make_router: Callable[..., Router], fast_engines: list[Engine], tmp_path: Path
) -> None:
    audit = Audit(tmp_path / "audit", secret="secret", flush_s=0.01)
    audit.start()
    router = make_router(fast_engines[0], audit=audit, direct=DirectSettings(max_s=600))
    said = router.http.post("/v1/direct", json={"model": "chat"}).json()
    router.close()
    audit.close()
    (record,) = (record for record in read(tmp_path / "audit") if record["kind"] == "grant")
    assert (record["key"], record["model"]) == ("tester", "chat")
    assert (record["replica"], record["expires_ms"]) == (said["replica"], said["expires_at"] * 1000)
    raw = b"".join(path.read_bytes() for path in (tmp_path / "audit").iterdir())
    assert said["token"].encode() not in raw


def test_a_retry_is_recorded(
    make_router: Callable[..., Router], fast_engines: list[Engine], tmp_path: Path
) -> None:
    audit = Audit(tmp_path / "audit", secret="secret", flush_s=0.01)
    audit.start()
    router = make_router(audit=audit)
    good = fast_engines[0].replica("good")
    gone = fast_engines[1].replica("gone", url="http://127.0.0.1:9", version="new")
    # Of another version: that its requests were answered elsewhere hides nothing of it.
    router.replace(good, gone)
    for _ in range(40):
        assert ask(router).status_code == 200
    # The first request finds out, and those that ask after a while whether it is back.
    ((label, count),) = figures(router, "retries_total")
    assert (label, 1 <= count < 10) == ('reason="connect"', True)
    failed = figures(router, "failed_attempts_total")
    assert failed == [('model="chat",version="new"', count)]
    router.close()
    audit.close()
    records = [record for record in read(tmp_path / "audit") if record["kind"] == "request"]
    assert {record["replica"] for record in records} == {"good"}
    assert sum(record["retries"] for record in records) == count
