"""Router processes for tests, and clients that never pause."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from exaslurm.core.cell import CellRecord, ReplicaRecord
from exaslurm.registry.write import write_record
from exaslurm.rundir import RunDir
from tests.tools.fleet import Engine, wait_for
from tests.tools.plans import make_plan

ROOT = Path(__file__).resolve().parents[2]

_START_S = 30.0

PLAN = make_plan(
    deployment="hello", layout="local", first_port=24000, last_port=24999, drain_s=10.0
).sealed()


def publish_engine(run_dir: RunDir, engine: Engine, ready: bool = True) -> None:
    replica = ReplicaRecord(
        id="c000-r0000",
        model="chat",
        shard="base",
        served_names=("chat",),
        url=engine.url,
        node="here",
        ready=ready,
    )
    record = CellRecord(
        deployment="hello",
        cell="c000",
        generation=1,
        plan_hash=PLAN.hash,
        job_id="local",
        seq=1,
        lease_s=30.0,
        state_url="http://127.0.0.1:1",
        replicas=(replica,),
    )
    write_record(run_dir, record)


def package() -> str:
    """The folder of the package that is tested (scripts/test --compiled)."""
    return os.environ.get("EXASLURM_TEST_COMPILED") or str(ROOT)


class Gateway:
    """One ``python -m exaslurm.gateway``. ``url`` is what it printed, empty if it did not start."""

    def __init__(self, arguments: Sequence[object], log: Path, **environ: str) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exaslurm.gateway", *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=log.parent,  # Python looks there before anywhere else
                env={**os.environ, "PYTHONPATH": package(), **environ},
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(_START_S)
        self.url = self.process.stdout.readline().decode().strip() if ready else ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[int]:
        """The pids of its living children, the oldest first."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def end(self, *, timeout_s: float = 15) -> int:
        return self.process.wait(timeout=timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait_ready(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False) as client:
        wait_for(lambda: client.get("/ready").status_code == 200)


class Load:
    """Clients that ask one request after the other over connections that they keep, until
    ``stop``. ``failures`` has what went wrong; ``reconnects``: how often a client that may try once
    more on a lost connection had to."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        plain: int = 3,
        streams: int = 2,
        may_reconnect: bool = False,
        tokens: int = 4,
        uds: Path | None = None,
    ) -> None:
        self.done = 0
        self.reconnects = 0
        self.failures: list[str] = []
        self._url, self._key = url, key
        self._uds = os.fspath(uds) if uds is not None else None
        self._tokens = tokens
        self._may_reconnect = may_reconnect
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(number < streams,), daemon=True)
            for number in range(plain + streams)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, stream: bool) -> None:
        with httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=30,
            trust_env=False,
            transport=httpx.HTTPTransport(uds=self._uds),
        ) as client:
            while not self._ending.is_set():
                again = False
                try:
                    self._ask(client, stream)
                except Exception as error:
                    again = self._may_reconnect and isinstance(error, httpx.TransportError)
                    if not again:
                        self._note(repr(error))
                if again:
                    with self._lock:
                        self.reconnects += 1
                    try:
                        self._ask(client, stream)
                    except Exception as error:
                        self._note(f"again: {error!r}")

    def _ask(self, client: httpx.Client, stream: bool) -> None:
        body = {"model": "chat", "prompt": "x", "max_tokens": self._tokens, "stream": stream}
        answer = client.post("/v1/completions", json=body)
        text = answer.text
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {text[:300]}")
        if stream:
            if not text.rstrip().endswith("data: [DONE]") or '"error"' in text:
                raise AssertionError(f"a stream ended with {text[-200:]!r}")
        else:
            assert json.loads(text)["choices"]
        with self._lock:
            self.done += 1

    def _note(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)

    def scrape(self) -> tuple[int, int]:
        """How many requests the router says it has answered well, and from how many processes
        that is, by whichever of them is met."""
        headers = {"Authorization": f"Bearer {self._key}"}
        with httpx.Client(base_url=self._url, headers=headers, trust_env=False) as client:
            text = client.get("/metrics").text
            processes = client.get("/status").json()["processes"]
        found = re.findall(
            r'^exaslurm_router_requests_total{.*status="200"} (\d+)$', text, re.MULTILINE
        )
        return sum(map(int, found)), processes

    def more(self, count: int = 30, *, timeout_s: float = 20) -> None:
        """Wait until that many more requests were answered."""
        aim, deadline = self.done + count, time.monotonic() + timeout_s
        while self.done < aim:
            assert time.monotonic() < deadline, (self.done, self.failures[:3])
            time.sleep(0.01)

    def stop(self) -> list[str]:
        self._ending.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive()
        return self.failures
