"""Clients as people have them, against real vLLM behind the router."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acceptance.router import browser
from acceptance.router.kit import RouterProcess
from acceptance.router.packages import client_python
from acceptance.router.vllm import Vllm, node_environment, tiny_model
from acceptance.runner import Line
from tests.tools import same_bytes
from tests.tools.fleet import INNER
from tests.tools.same_bytes import Side
from tests.tools.tap import Tap

TITLE = "real clients, unchanged, against real vLLM; every byte as from vLLM itself"

CHAT, EMBED = "tiny", "vectors"
_CLIENTS = Path(__file__).with_name("clients")
_WRITES = (
    *("--served-model-name", CHAT, "--max-model-len", "2048"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # White space in JSON is without end where a model knows nothing.
    *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
    # So that the pieces of a stream do not depend on how busy the machine is.
    *("--stream-interval", "8"),
    # As the router: any page may ask, with its user's key.
    *("--allowed-origins", '["*"]'),
)
_READS = ("--served-model-name", EMBED, "--max-model-len", "2048", "--runner", "pooling")


def run(line: Line) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = node_environment()
        python = client_python(line)
        page = browser.chromium(line)
        model = tiny_model(line, env, folder)
        engines = [
            Vllm(line, env, model, folder / "writes.log", *_WRITES),
            Vllm(line, env, model, folder / "reads.log", *_READS),
        ]
        for engine in engines:
            engine.wait_ready()
        router = started(line, folder / "router", [engine.url for engine in engines])
        bytes_of(line, folder / "tapped", engines, router)
        for kind in ("openai", "litellm", "langchain"):
            package(line, python, kind, folder / "router" / "client.key", router)
        # vLLM itself brings this one along.
        package(
            line, str(env / "bin/python"), "anthropic", folder / "router" / "client.key", router
        )
        bench(line, env, model, folder, router)
        curl(line, folder, router)
        pages(line, page, folder, router)
        other_origins(line, engines[0], router)
        nothing_left(line, router)


def started(line: Line, folder: Path, urls: list[str]) -> RouterProcess:
    folder.mkdir()
    router = RouterProcess(line, folder, urls, guarded=True)
    router.wait_ready(len(urls))
    return router


def bytes_of(line: Line, folder: Path, engines: list[Vllm], router: RouterProcess) -> None:
    """The same requests directly and through the router; and what a tap sees of a router."""
    taps = [Tap(engine.url) for engine in engines]
    line.cleanups += [tap.close for tap in taps]
    tapped = started(line, folder, [tap.url for tap in taps])
    near, through = Side(router.url, router.key), Side(tapped.url, tapped.key)
    for engine, tap, requests in (
        (engines[0], taps[0], list(same_bytes.generating(CHAT))),
        (engines[1], taps[1], list(same_bytes.pooling(EMBED))),
    ):
        direct = Side(engine.url, INNER)
        other = {each.name: same_bytes.difference(direct, near, each) for each in requests}
        changed = {each.name: same_bytes.changed(tap, through, each) for each in requests}
        what = f"{len(requests)} requests to {'vectors' if engine is engines[1] else 'text'}"
        line.check(f"{what}: as from vLLM itself", not any(other.values()), tell(other))
        line.check(
            f"{what}: not a bit changed on the way", not any(changed.values()), tell(changed)
        )


def tell(found: dict[str, str]) -> str:
    wrong = [f"{name}: {text}" for name, text in found.items() if text]
    return "\n".join(["all" if not wrong else f"{len(wrong)} differ", *wrong])


def package(line: Line, python: str, kind: str, key_file: Path, router: RouterProcess) -> None:
    """One of the programs in ``clients``."""
    given = {"base_url": router.url + "/v1", "key_file": str(key_file), "chat": CHAT}
    program = [python, str(_CLIENTS / f"{kind}_calls.py"), json.dumps({**given, "embed": EMBED})]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    try:
        rows = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        line.ran(kind, done)
        raise
    for what, ok, found in rows:
        line.check(f"{kind}: {what}", ok, found)


def bench(line: Line, env: Path, model: Path, folder: Path, router: RouterProcess) -> None:
    """vLLM's own load generator."""
    for kind, path in (("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")):
        result = folder / f"{kind}.json"
        command = [str(env / "bin/vllm"), "bench", "serve", "--backend", kind]
        command += ["--base-url", router.url, "--endpoint", path]
        command += ["--model", CHAT, "--tokenizer", str(model), "--dataset-name", "random"]
        command += ["--random-input-len", "64", "--random-output-len", "16", "--ignore-eos"]
        command += ["--num-prompts", "64", "--max-concurrency", "8", "--disable-tqdm"]
        command += ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
        more = {"OPENAI_API_KEY": router.key, "HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **more}
        )
        line.ran(f"vllm bench serve --backend {kind}", done)
        found: dict[str, Any] = json.loads(result.read_text())
        counts = found["completed"], found["failed"], found["total_output_tokens"]
        line.check("  completed, failed, tokens", counts == (64, 0, 64 * 16), counts)


def curl(line: Line, folder: Path, router: RouterProcess) -> None:
    """By hand: the key on standard input, so that it is in no list of processes."""
    line.need("curl is installed", shutil.which("curl") is not None)
    body = {"model": CHAT, "messages": same_bytes.HI, "max_tokens": 8}
    file = folder / "body.json"

    def ask(what: str, *words: str, **more: object) -> str:
        file.write_text(json.dumps({**body, **more}))
        command = ["curl", "-sS", "--fail-with-body", "--noproxy", "*", "--max-time", "60"]
        command += ["-K", "-", "-H", "Content-Type: application/json", "-d", f"@{file}", *words]
        done = subprocess.run(
            [*command, router.url + "/v1/chat/completions"],
            input=f'header = "Authorization: Bearer {router.key}"\n',
            capture_output=True,
            text=True,
            timeout=90,
        )
        line.ran(what, done)
        return done.stdout

    whole = json.loads(ask("curl"))
    line.check("  an answer", whole["object"] == "chat.completion", whole["id"])
    for words in (("-N",), ("--http1.0",), ("--http2",)):
        text = ask(f"curl {words[0]}, streamed", *words, stream=True)
        line.check("  to its end", text.endswith("data: [DONE]\n\n"), f"{len(text)} bytes")
    answer = json.loads(ask("curl with a body that it asks for first", user="x" * (2 << 20)))
    line.check("  an answer", answer["object"] == "chat.completion", answer["id"])


def pages(line: Line, program: str, folder: Path, router: RouterProcess) -> None:
    given = {"url": router.url, "key": router.key, "model": CHAT}
    for what, ok, found in browser.visit(program, given, folder):
        line.check(f"Chromium: {what}", ok, found)


def other_origins(line: Line, engine: Vllm, router: RouterProcess) -> None:
    """What a page of another origin may do, as vLLM says it with ``--allowed-origins '["*"]'``."""
    wish = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
    }
    body = json.dumps({"model": CHAT, "messages": same_bytes.HI, "max_tokens": 1})
    cases: list[tuple[str, str, str, str | None, dict[str, str]]] = [
        ("preflight", "OPTIONS", "/v1/chat/completions", None, wish),
        ("preflight of GET", "OPTIONS", "/v1/models", None, {**wish, **_GET}),
        ("request", "POST", "/v1/chat/completions", body, {}),
        ("refused request", "POST", "/v1/chat/completions", "{}", {}),
        ("list of models", "GET", "/v1/models", None, {}),
        ("unknown path", "GET", "/v1/nothing", None, {}),
    ]
    for what, method, path, sent, more in cases:
        found = [
            _cors(url, key, method, path, sent, more)
            for url, key in ((engine.url, INNER), (router.url, router.key))
        ]
        text = "as vLLM's" if found[0] == found[1] else f"{found[1]}, not {found[0]}"
        line.check(f"what pages may do, {what}", found[0] == found[1], text)


_GET = {"Access-Control-Request-Method": "GET"}


def _cors(
    url: str, key: str, method: str, path: str, body: str | None, more: dict[str, str]
) -> tuple[int, dict[str, str]]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    headers = {"Origin": "http://elsewhere.example", "Authorization": f"Bearer {key}", **more}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, {n: v for n, v in fields.items() if n.startswith("access-control-")}
    finally:
        connection.close()


def nothing_left(line: Line, router: RouterProcess) -> None:
    """What was left in the middle has ended at the engines, too."""
    deadline_s = time.monotonic() + 5
    left = -1
    while left and time.monotonic() < deadline_s:
        left = sum(replica["outstanding"] for replica in router.status["replicas"])
        time.sleep(0.05)
    line.check("nothing is left outstanding", left == 0, left)
