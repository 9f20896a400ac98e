"""The corpus of requests, asked of real vLLM itself and of the router in front of it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from acceptance.router.kit import RouterProcess
from acceptance.router.vllm import Vllm, node_environment, tiny_model
from acceptance.runner import Line
from tests.tools.ask_vllm import JSON, Case, Engine
from tests.tools.corpus import MAX_MODEL_LEN, MODEL, SERVERS, compare
from tests.tools.fleet import INNER

TITLE = "never stricter than vLLM: what it accepts passes the router"

_TOO_LARGE_BYTES = 64 * 1024 * 1024 + 1


def run(line: Line) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = node_environment()
        model = tiny_model(line, env, folder)
        for kind, options in SERVERS.items():
            names = ("--served-model-name", MODEL, "--max-model-len", str(MAX_MODEL_LEN))
            log = folder / f"{kind}.log"
            with Vllm(line, env, model, log, *names, *options) as engine:
                engine.wait_ready()
                own = folder / kind
                own.mkdir()
                ask(line, kind, engine, RouterProcess(line, own, [engine.url], guarded=True))


def ask(line: Line, kind: str, engine: Vllm, router: RouterProcess) -> None:
    router.wait_ready(1)
    through = Engine(router.url, key=router.key)
    begin_s = time.monotonic()
    found = compare(kind, Engine(engine.url, key=INNER), through)
    took_s = time.monotonic() - begin_s
    line.note(f"{kind}: {found.asked} requests, each to both, in {took_s:.0f} s")
    line.at_least("accepted by vLLM", found.accepted, 500)
    line.check("the router passes them, same status", not found.stricter, tell(found.stricter))
    line.check("what neither takes: vLLM's status, or 400", not found.unlike, tell(found.unlike))
    line.check("vLLM answers as the corpus says", not found.untrue, tell(found.untrue))
    body = b'{"model": "tiny", "prompt": "x", "user": "%b"}' % (b"y" * _TOO_LARGE_BYTES)
    status, _ = through.ask(Case("/v1/completions", body, JSON, 0, ""))
    line.check("a body over the limit of its size", status == 413, status)


def tell(found: list[str]) -> str:
    return "\n".join([str(len(found)) if found else "all", *found[:10]])
