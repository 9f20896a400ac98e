"""A simulated engine as a process: its answers, its marks, its end."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.tools.fleet import INNER, Engine, wait_for

RECORDED = Path(__file__).parent / "vllm-0.32-metrics.txt"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(
        "--decode-tokens-per-s", "2000", "--max-model-len", "256", names=("chat", "chat:base")
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def http(engine: Engine) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {INNER}"}
    with httpx.Client(base_url=engine.url, headers=headers, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key=INNER, max_retries=0) as client:
        yield client


def test_chat_is_deterministic_and_says_that_it_is_simulated(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(
            model="chat:base", messages=[{"role": "user", "content": "hello"}], max_tokens=12
        )
        for _ in range(2)
    ]
    first = answers[0]
    assert first.choices[0].message.content == answers[1].choices[0].message.content
    assert (first.choices[0].message.content or "").startswith("This answer is simulated")
    assert first.system_fingerprint == "exaslurm-simulated"
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert first.usage.completion_tokens == 12


def test_a_stream_carries_the_same_text_and_the_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hello"}]
    )
    chunks = list(
        client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_completions_and_embeddings(client: openai.OpenAI) -> None:
    done = client.completions.create(model="chat", prompt="once", max_tokens=3)
    assert len(done.choices[0].text.split()) == 3
    vectors = client.embeddings.create(model="chat", input=["a", "b", "a"]).data
    assert vectors[0].embedding == vectors[2].embedding != vectors[1].embedding
    assert sum(value * value for value in vectors[0].embedding) == pytest.approx(1.0, abs=1e-5)


def test_every_answer_is_marked(http: httpx.Client) -> None:
    for path in ("/health", "/v1/models", "/version", "/metrics", "/nowhere"):
        assert http.get(path).headers["x-exaslurm-simulated"] == "1"
    assert "\nexaslurm_simulated 1.0\n" in http.get("/metrics").text


def test_every_path_but_health_needs_the_key(engine: Engine) -> None:
    with httpx.Client(base_url=engine.url, trust_env=False) as stranger:
        assert stranger.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/version", "/is_sleeping", "/nowhere"):
            assert stranger.get(path).status_code == 401
        wrong = stranger.post("/sleep", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "Field required"),
        ({"messages": []}, 400, "empty conversation"),
        ({"messages": "hi"}, 400, "valid list"),
        ({"model": "nope", "messages": [{"role": "user", "content": "x"}]}, 404, "does not exist"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400, "at least 1"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9999}, 400, "greater than"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "maximum context length"),
    ],
)
def test_bad_requests_are_answered_as_vllm_does(
    http: httpx.Client, body: dict[str, object], status: int, words: str
) -> None:
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert words in answer.json()["error"]["message"]


def test_other_paths(http: httpx.Client) -> None:
    assert http.get("/nowhere").json() == {"detail": "Not Found"}
    assert http.get("/v1/chat/completions").status_code == 405
    tokens = http.post("/tokenize", json={"prompt": "hello world"}).json()
    assert tokens["count"] == len(tokens["tokens"]) == 3
    card = http.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("chat", 256)


def test_metrics_have_names_labels_and_buckets_of_real_vllm(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    recorded, ours = RECORDED.read_text(), http.get("/metrics").text
    assert len(_families(ours)) > 20
    assert _families(ours).items() <= _families(recorded).items()
    differing = {
        series
        for series in _series(ours) - _series(recorded)
        if not series[0].startswith("vllm:cache_config_info")
    }
    assert differing == set()


def _families(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)$", page, re.MULTILINE))


def _series(page: str) -> set[tuple[str, tuple[str, ...]]]:
    """Names with label names, and with the values of labels that are not about the model."""
    found = set()
    for name, labels in re.findall(r"^(vllm:[^{\s]+)\{([^}]*)\}", page, re.MULTILINE):
        pairs = re.findall(r'(\w+)="([^"]*)"', labels)
        found.add((name, tuple(sorted(k if k == "model_name" else f"{k}={v}" for k, v in pairs))))
    return found


def test_a_client_that_leaves_ends_its_request() -> None:
    engine = Engine("--decode-tokens-per-s", "10")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 500, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {INNER}"}
    try:
        for stream in (False, True):
            timeout = httpx.Timeout(5, read=0.3)
            with (
                httpx.Client(base_url=engine.url, headers=headers, timeout=timeout) as http,
                pytest.raises(httpx.ReadTimeout),
            ):
                http.post("/v1/completions", json={"prompt": "x", "max_tokens": 500, **body})
            wait_for(lambda: engine.running == 0, timeout_s=0.3)
            body["stream"] = stream
        assert engine.metric("vllm:kv_cache_usage_perc") == 0
    finally:
        engine.close()


def test_more_than_max_num_seqs_wait() -> None:
    engine = Engine("--decode-tokens-per-s", "50", "--max-num-seqs", "2")
    threads = [
        threading.Thread(target=_ask, args=(engine, {"prompt": "x", "max_tokens": 25}))
        for _ in range(5)
    ]
    try:
        for thread in threads:
            thread.start()
        wait_for(lambda: engine.metric("vllm:num_requests_waiting") == 3 and engine.running == 2)
        assert 0 < engine.metric("vllm:kv_cache_usage_perc") < 1
    finally:
        for thread in threads:
            thread.join(timeout=20)
        engine.close()


def _ask(engine: Engine, body: dict[str, object]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {INNER}"}
    return httpx.post(engine.url + "/v1/completions", json=body, headers=headers, timeout=20)


@pytest.mark.parametrize(("timeout", "ending"), [("0", "error"), ("20", "whole")])
def test_sigterm_ends_as_vllm_does(timeout: str, ending: str) -> None:
    engine = Engine("--decode-tokens-per-s", "50", "--shutdown-timeout", timeout)
    body = {"prompt": "x", "max_tokens": 40, "stream": True}
    headers = {"Authorization": f"Bearer {INNER}"}
    try:
        with httpx.stream(
            "POST", engine.url + "/v1/completions", json=body, headers=headers, timeout=20
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            engine.terminate()
            if ending == "whole":
                wait_for(lambda: _ask(engine, body).status_code == 500)
                assert engine.get("/health") == ""
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert ('"error"' in rest[-2]) == (ending == "error")
        assert engine.process.wait(timeout=5) == 0
    finally:
        engine.close()


def test_start_is_quick() -> None:
    started_s = time.monotonic()
    engine = Engine()
    took_s = time.monotonic() - started_s
    engine.close()
    assert took_s < 5.0
