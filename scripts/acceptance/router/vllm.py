"""Real vLLM on this machine's CPU: the tiny model, guarded as in a deployment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from acceptance.lab import ROOT
from acceptance.runner import Line, LineFailed
from tests.tools.fleet import INNER

READY_S = 300.0
MIDDLEWARE = "exaslurm.engines.middleware.KeyMiddleware"
_TINY = (
    *("--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32"),
    *("--kv-cache-memory-bytes", str(1 << 28), "--distributed-executor-backend", "uni"),
    *("--shutdown-timeout", "5", "--middleware", MIDDLEWARE),
)


def node_environment() -> Path:
    """The nodes' software (scripts/env), built if it is missing."""
    script = [str(ROOT / "scripts/env")]
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, timeout=3600)
    if done.returncode:
        raise LineFailed("scripts/env failed")
    return Path(done.stdout.strip())


def tiny_model(line: Line, env: Path, folder: Path) -> Path:
    """A random llama with a tokenizer of its own, made anew."""
    model = folder / "tiny"
    program = [str(env / "bin/python"), str(ROOT / "tests/tools/tiny_model.py"), str(model)]
    made = subprocess.run(program, capture_output=True, text=True, timeout=300)
    line.ran("a tiny model for real vLLM", made)
    return model


class Vllm:
    """One engine that asks for the key of the tests' engines. Use as ``with``, or it is ended at
    the line's end."""

    def __init__(
        self, line: Line, env: Path, model: Path, log: Path, *options: str, port: int = 0
    ) -> None:
        if not port:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(env / "bin/vllm"), "serve", str(model), *_TINY, *options, f"--port={port}"],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "EXASLURM_ENGINE_KEY": INNER,
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_NO_USAGE_STATS": "1",
                    "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1",
                    "no_proxy": "127.0.0.1",
                },
            )
        line.cleanups.append(self.close)

    def __enter__(self) -> Vllm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self) -> float:
        """When it first answered (monotonic); LineFailed if it does not, or ends."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), opener.open(self.url + "/health", timeout=5):
                return time.monotonic()
            time.sleep(0.02)
        said = self.log.read_text("utf-8", "replace")[-3000:]
        raise LineFailed(f"{self.url} was not ready within {READY_S:g} s: {said}")

    def close(self) -> None:
        """With all its children: an engine outlives its API server."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)
