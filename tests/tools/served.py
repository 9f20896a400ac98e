"""A router process over a list of engines, and what it takes of the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.tools.fleet import wait_for
from tests.tools.gateway import Gateway


class Served:
    """A router process over a list of engines; nobody is asked for a key."""

    key = "none"

    def __init__(self, directory: Path, urls: Sequence[str], *options: str) -> None:
        self.list = directory / "engines"
        self.put(urls)
        words = ("--engines-file", self.list, "--port", "0", "--no-auth", *options)
        self.gateway = Gateway(words, directory / "router.log")
        assert self.gateway.url, self.gateway.said
        self.url = self.gateway.url.removesuffix("/v1")
        self.port = int(self.url.rsplit(":", 1)[1])
        self.http = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=20)

    def put(self, urls: Sequence[str]) -> None:
        """Change the list; the router reads it within some seconds."""
        fresh = self.list.with_suffix(".new")
        fresh.write_text("".join(f"{url}\n" for url in urls))
        fresh.rename(self.list)

    @property
    def status(self) -> dict[str, Any]:
        page: dict[str, Any] = self.http.get("/status").json()
        return page

    def wait_ready(self, count: int, *, timeout_s: float = 20) -> None:
        """Until so many engines take requests."""

        def ready() -> bool:
            return sum(replica["takes_requests"] for replica in self.status["replicas"]) >= count

        wait_for(ready, timeout_s=timeout_s, every_s=0.1)

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.gateway.pid}/fd").iterdir()))

    @property
    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.gateway.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def close(self) -> None:
        self.http.close()
        self.gateway.close()
