"""The life of a router process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from exaslurm.core.codec import loads
from exaslurm.core.plan import Plan
from exaslurm.errors import DeploymentError, ExaslurmError
from exaslurm.gateway.address import advertised_url, is_loopback, listen
from exaslurm.gateway.endpoint import own_address, publish, withdraw
from exaslurm.gateway.follow import Watch
from exaslurm.keys.clients import ClientKeys
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.follow import RegistryFollower
from exaslurm.router.app import build_app
from exaslurm.router.config import RouterConfig
from exaslurm.router.protocol import RouterProtocol
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_FILE_TIMEOUT_S = 10.0
_CUT_OFF_S = 1.0
# Longer than clients keep idle connections, so that none is closed as it is used again.
_KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a router process is started; None: as the plan says."""

    run_dir: RunDir
    generation: int | None = None
    bind: str | None = None
    port: int | None = None


def load_plan(options: GatewayOptions) -> Plan:
    """The plan of the asked generation, or of the newest."""
    run_dir = options.run_dir.require()
    if options.generation is not None:
        generation = run_dir.generation(options.generation)
    else:
        newest = run_dir.latest()
        if newest is None:
            raise DeploymentError(
                f"{run_dir.path} holds no plan", remedy="submit the deployment first"
            )
        generation = newest
    return loads(Plan, read_text(generation.plan), where=str(generation.plan))


async def serve(options: GatewayOptions) -> None:
    """Serve a deployment until it stops, or a signal comes; then finish what is begun.

    ExaslurmError if the router cannot start.
    """
    run_dir = options.run_dir
    _raise_file_limit()
    plan = load_plan(options)
    internal_key = read_secret(run_dir.internal_key)
    keys = ClientKeys(run_dir, internal_key=internal_key)
    keys.refresh()
    bind = plan.gateway.bind if options.bind is None else options.bind
    port = plan.gateway.port if options.port is None else options.port
    sock = listen(bind, port, plan.ports)
    with contextlib.closing(sock):
        url = advertised_url(bind, sock.getsockname()[1])
        if not is_loopback(bind):
            log.warning("listening on %s: reachable from other hosts, without TLS", bind)
        await _Process(run_dir, plan, keys, internal_key, url).run(sock)


def _raise_file_limit() -> None:
    """Each request takes two descriptors; the usual 1,024 of a login shell are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Server(uvicorn.Server):
    """A uvicorn server whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """One router: server, follower, watch, and its line in ``endpoint.json``."""

    def __init__(
        self, run_dir: RunDir, plan: Plan, keys: ClientKeys, internal_key: str, url: str
    ) -> None:
        self._run_dir = run_dir
        self._keys = keys
        self._files = IoThread("files")
        self._follower = RegistryFollower(run_dir, internal_key)
        self._own = own_address(url)
        config = RouterConfig(deployment=plan.deployment, internal_key=internal_key)
        self._app = build_app(config, self._follower, keys)
        self._server = _Server(
            uvicorn.Config(
                self._app,
                loop="none",
                http=RouterProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(plan.timeouts.drain_s)),
            )
        )

    async def run(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        watch = Watch(self._run_dir, self._keys, self._own, self._files, self._stop)
        helpers = [asyncio.create_task(self._follower.run())]
        try:
            await self._files.run(publish, self._run_dir, self._own, timeout_s=_FILE_TIMEOUT_S)
            helpers.append(asyncio.create_task(watch.run()))
            print(self._own.url, flush=True)
            log.info("serving %s on %s", self._run_dir.deployment, self._own.url)
            # Entered here, not by uvicorn, which leaves it open when it has to end at once.
            async with self._app.router.lifespan_context(self._app):
                await self._server.serve(sockets=[sock])
                await self._cut_off()
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._withdraw()
        log.info("ended")

    def _on_signal(self, number: signal.Signals) -> None:
        if self._server.should_exit:
            log.warning("%s again: ending at once", number.name)
            self._server.force_exit = True
        else:
            self._stop(number.name)

    def _stop(self, reason: str) -> None:
        log.info("ending when the requests at hand are done: %s", reason)
        self._server.should_exit = True

    async def _cut_off(self) -> None:
        """End the requests that uvicorn has left, if any; each is answered."""
        left = list(self._server.server_state.tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("%d requests cut off", len(left))
            await asyncio.wait(left, timeout=_CUT_OFF_S)

    async def _withdraw(self) -> None:
        try:
            await self._files.run(withdraw, self._run_dir, self._own, timeout_s=_FILE_TIMEOUT_S)
        except ExaslurmError as error:
            log.warning("endpoint.json still names this router: %s", error)
