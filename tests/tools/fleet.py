"""Real processes for router tests: simulated engines, and a router in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from exaslurm.keys.clients import ClientKeys, add_key
from exaslurm.registry.replica import Replica, StaticSource
from exaslurm.router.app import build_app
from exaslurm.router.audit import Audit
from exaslurm.router.config import RouterConfig
from exaslurm.router.protocol import protocol_factory
from exaslurm.rundir import RunDir

INNER = "internal-key-of-the-tests"
_START_S = 60.0


def wait_for(what: Callable[[], Any], *, timeout_s: float = 10.0, every_s: float = 0.01) -> Any:
    """The first true value of ``what()``; AssertionError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)
    return value


class Engine:
    """One simulated engine, a process of its own on loopback."""

    def __init__(self, *args: str, names: Sequence[str] = ("chat",), port: int = 0) -> None:
        command = [sys.executable, "-m", "exaslurm.engines.simulated", "--port", str(port)]
        self.process = subprocess.Popen(
            [*command, "--served-model-name", *names, *args],
            stdout=subprocess.PIPE,
            env={**os.environ, "EXASLURM_ENGINE_KEY": INNER},
            start_new_session=True,
        )
        try:
            self.url = self._read_url()
        except BaseException:
            self.close()
            raise
        self.names = tuple(names)
        self.port = int(self.url.rsplit(":", 1)[1])

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(_START_S), "the engine did not start"
        line = self.process.stdout.readline().decode()
        found = re.search(r"http://\S+", line)
        assert found, line
        return found.group()

    def replica(self, ident: str, **changes: Any) -> Replica:
        base = Replica(
            id=ident,
            cell="c000",
            model="chat",
            served_names=self.names,
            url=self.url,
            node=f"node-{ident}",
            ready=True,
            state="ready",
            pid=self.process.pid,
        )
        return dataclasses.replace(base, **changes)

    def get(self, path: str) -> str:
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {INNER}"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def metric(self, name: str) -> float:
        """The (first) value of a metric."""
        found = re.search(
            rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics"), re.MULTILINE
        )
        assert found, name
        return float(found.group(1))

    @property
    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Router:
    """A router in a thread, over a list of replicas that the test changes."""

    def __init__(
        self,
        tmp_path: Path,
        replicas: Sequence[Replica] = (),
        *,
        audit: Audit | None = None,
        **settings: Any,
    ) -> None:
        self.run_dir = RunDir(tmp_path / "hello")
        self.run_dir.make()
        self.key = add_key(self.run_dir, "tester")
        self.keys = ClientKeys(self.run_dir, internal_key=INNER)
        self.keys.refresh()
        self.source = StaticSource(replicas)
        config = RouterConfig(deployment="hello", internal_key=INNER, **settings)
        app = build_app(config, self.source, self.keys, audit=audit)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                port=0,
                http=protocol_factory(app),  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="router")
        self._thread.start()
        wait_for(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # Without certificates: loading them takes longer than a test.
        self.stranger = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=20)
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"},
            verify=False,
            trust_env=False,
            timeout=20,
        )

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve())
        self._loop.close()

    def replace(self, *replicas: Replica) -> None:
        """Change the list of replicas, and wait until the router has taken it."""
        self.call(lambda: self.source.replace(replicas))

    @property
    def inside(self) -> Any:
        """The router itself; what is called of it belongs into its event loop (``call``)."""
        app: Any = self._server.config.app
        return app.state.router

    def call(self, act: Callable[[], object]) -> None:
        """Do something in the router's event loop, and wait for it."""
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(5)

    def close(self) -> None:
        self.http.close()
        self.stranger.close()
        self._server.should_exit = True
        self._thread.join(timeout=15)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def engines(*argument_lists: Sequence[str], names: Sequence[str] = ("chat",)) -> Iterator[Any]:
    """Several simulated engines, started side by side."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(Engine(*arguments, names=names)))
            for arguments in argument_lists
        ]
