"""A router process over a list of engines, as people start it.

It is the compiled one (``scripts/compiled``), unless ``EXASLURM_INTERPRETED`` is set.
"""

from __future__ import annotations

import functools
import os
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from acceptance.lab import ROOT
from acceptance.runner import Line, LineFailed
from tests.tools.fleet import INNER

_START_S = 30.0


class RouterProcess:
    """``exaslurm router --engines-file``; ended at the line's end."""

    def __init__(
        self, line: Line, folder: Path, urls: Sequence[str], *options: str, guarded: bool = False
    ) -> None:
        """``guarded``: the engines ask for the key of the tests' engines."""
        self.key = secrets.token_hex(16)
        self._list = folder / "engines.yaml"
        self._engine_key = _secret(folder / "engine.key", INNER) if guarded else None
        self.put(urls)
        words = ["--engines-file", str(self._list), "--port", "0"]
        words += ["--key-file", str(_secret(folder / "client.key", self.key)), *options]
        self.log = folder / "router.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "exaslurm", "router", *words],
                cwd=folder,  # Python looks there before anywhere else
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": package()},
            )
        line.cleanups.append(self.close)
        self.url = self._read_url().removesuffix("/v1")
        self.port = int(self.url.rsplit(":", 1)[1])
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"},
            verify=False,
            trust_env=False,
            timeout=30,
        )

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(_START_S)
        url = self._process.stdout.readline().decode().strip() if ready else ""
        if not url.startswith("http"):
            raise LineFailed(f"the router did not start: {self.log.read_text()[-2000:]}")
        return url

    def put(self, urls: Sequence[str]) -> None:
        """Change the list of engines."""
        key = [f"key_file: {self._engine_key}"] if self._engine_key else []
        fresh = self._list.with_suffix(".new")
        rows = [*key, "engines:", *(f"  - {url}" for url in urls)] if key else list(urls)
        fresh.write_text("\n".join([*rows, ""]))
        fresh.rename(self._list)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> dict[str, Any]:
        page: dict[str, Any] = self.http.get("/status").json()
        return page

    def wait_ready(self, count: int, timeout_s: float = 60) -> None:
        """Until so many engines take requests."""
        deadline_s = time.monotonic() + timeout_s
        ready = 0
        while ready < count:
            if time.monotonic() > deadline_s:
                raise LineFailed(f"{ready} of {count} engines were ready after {timeout_s:g} s")
            time.sleep(0.1)
            ready = sum(replica["takes_requests"] for replica in self.status["replicas"])

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB (10^6 bytes)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()


@functools.cache
def package() -> str:
    """The folder that the router's package lies in."""
    if os.environ.get("EXASLURM_INTERPRETED"):
        return str(ROOT)
    script = ROOT / "scripts" / "compiled"
    return subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _secret(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text + "\n")
    return path
