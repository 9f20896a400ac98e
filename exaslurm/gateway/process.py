"""One serving process: a server, its source of replicas, its keys and certificate."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from exaslurm.errors import ExaslurmError, StateError
from exaslurm.gateway.canary import CanaryFile
from exaslurm.gateway.figures import Figures
from exaslurm.gateway.follow import Step, Watch
from exaslurm.gateway.listeners import Listeners
from exaslurm.gateway.server import Server
from exaslurm.gateway.service import Service
from exaslurm.gateway.sleepers import Sleepers
from exaslurm.gateway.tls import Certificate
from exaslurm.keys.clients import ClientKeys
from exaslurm.registry.replica import Replica, ReplicaSource
from exaslurm.router.app import build_app
from exaslurm.router.loads import Loads, loads_path
from exaslurm.router.quotas import SharedQuotas
from exaslurm.router.router import Router
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import write_on
from exaslurm.util.malloc import Option, set_malloc

log = logging.getLogger(__name__)

_CUT_OFF_S = 1.0
_COLLECT_AFTER = 10_000  # objects made and not freed
# Numbers of malloc.h, and what they are set to. Larger pieces than that have pages of their own; to
# read the JSON of a body takes a piece of ten times its size.
_KEPT_BYTES = 32 * 1024 * 1024
_MAPPED_BYTES = 16 * 1024 * 1024
_PAUSE_S = 0.02
_FIGURES_S = 1.0
_FILE_TIMEOUT_S = 10.0
_KNOW_TIMEOUT_S = 5.0
_SETTLED_S = 0.3


class Process:
    """Serves until it is told to stop; then finishes what is begun. Used inside one event loop.

    ``steps`` are taken once a second besides those of the process itself. ``on_ready`` is awaited
    once it serves. ``figures``: where the processes of this router put theirs. ``warm``: another
    process has served until now, so this one takes no connections before it knows the replicas, or
    its first clients would be refused.
    """

    def __init__(
        self,
        service: Service,
        listeners: Listeners,
        certificate: Certificate | None,
        *,
        figures: Path | None = None,
        warm: bool = False,
        steps: Sequence[Step] = (),
        on_ready: Callable[[], Awaitable[None]],
    ) -> None:
        front = service.front
        self.files = IoThread("files")
        write_on(self.files)
        self._parts = service.parts(self.files)
        self._quotas = _quotas(service) if self._parts.keys is not None else None
        self._loads = _loads(service)
        self._figures = Figures(figures) if figures is not None else None
        self._app = build_app(
            self._parts.config,
            self._parts.source,
            self._parts.keys,
            audit=self._parts.audit,
            loads=self._loads,
            quotas=self._quotas,
            siblings=self._figures,
        )
        self._server = Server(
            self._app,
            listeners,
            tls=certificate.context if certificate is not None else None,
            drain_s=front.drain_s,
            on_ready=on_ready,
        )
        own_steps: list[Step] = []
        if self._parts.keys is not None:
            own_steps.append(_keys_step(self._parts.keys))
        if certificate is not None:
            own_steps.append(certificate.refresh)
        if service.canary is not None:
            own_steps.append(CanaryFile(service.canary, self._app.state.router.divide).refresh)
        if service.run_dir is not None:
            router = self._app.state.router
            sleepers = Sleepers(service.run_dir, router.may_wake, lambda: router.held_counts)
            own_steps.append(sleepers.refresh)
        self._warm = warm
        self._watch = Watch([*own_steps, *steps], self.files, self.stop)

    async def run(self) -> None:
        """Serve until ``stop``. ExaslurmError if ``on_ready`` failed."""
        # Every step of the end is taken, the last one here first, whatever comes of the others.
        async with contextlib.AsyncExitStack() as at_end:
            audit = self._parts.audit
            if audit is not None:
                audit.start()
                at_end.push_async_callback(asyncio.to_thread, audit.close)
            for shared in (self._loads, self._quotas):
                if shared is not None:
                    at_end.callback(shared.close)
            at_end.push_async_callback(self._leave_figures)
            helpers = [
                asyncio.create_task(self._parts.source.run()),
                asyncio.create_task(self._watch.run()),
                asyncio.create_task(self._write_figures()),
            ]
            at_end.push_async_callback(_end, helpers)
            _spare_the_collector()
            _keep_memory()
            # Entered here, not by uvicorn, which leaves it open when it has to end at once.
            async with self._app.router.lifespan_context(self._app):
                if self._warm:
                    await know_replicas(self._parts.source)
                await self._server.serve()
                await self._cut_off()

    @property
    def stopping(self) -> bool:
        return self._server.should_exit

    def stop(self, reason: str, *, succeeded: bool = False) -> None:
        """End when the requests at hand are done, or after the drain time. ``succeeded``: another
        process takes connections on the same sockets, so that they may take as long as they
        need."""
        if not self.stopping:
            log.info("ending when the requests at hand are done: %s", reason)
            self._server.succeeded = succeeded
            self._server.should_exit = True
        elif not succeeded:
            self._server.hurry()

    def end_now(self, reason: str) -> None:
        """Answer the requests at hand with an error, and end."""
        log.warning("ending at once: %s", reason)
        self._server.should_exit = self._server.force_exit = True

    async def _write_figures(self) -> None:
        """Leave them for the other processes of this router, once a second."""
        router: Router = self._app.state.router
        trouble = None
        while self._figures is not None:
            await asyncio.sleep(_FIGURES_S)
            try:
                raw = router.metrics.snapshot()
                write = functools.partial(self._figures.write, raw, taken_s=time.monotonic())
                await self.files.run(write, timeout_s=_FILE_TIMEOUT_S)
                trouble = None
            except Exception as error:  # to write them is not worth an end
                if str(error) != trouble:
                    text = "the other processes do not know this one's figures: %s"
                    log.warning(text, error, exc_info=not isinstance(error, ExaslurmError))
                trouble = str(error)

    async def _leave_figures(self) -> None:
        if self._figures is None:
            return
        router: Router = self._app.state.router
        try:
            raw = router.metrics.snapshot()
            await self.files.run(
                functools.partial(self._figures.write, raw, last=True), timeout_s=_FILE_TIMEOUT_S
            )
        except Exception as error:  # nor shall it keep the rest of the end from its work
            text = "what this process has counted is lost: %s"
            log.warning(text, error, exc_info=not isinstance(error, ExaslurmError))

    async def _cut_off(self) -> None:
        """End the requests that are left, if any; each is answered."""
        router: Router = self._app.state.router
        left = list(self._server.server_state.tasks)
        for task in left:
            task.cancel()
        count = len(left) + router.cut_off()
        if not count:
            return
        log.warning("%d requests cut off", count)
        if left:
            await asyncio.wait(left, timeout=_CUT_OFF_S)
        deadline = time.monotonic() + _CUT_OFF_S  # for their answers to be sent
        while router.connections and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _spare_the_collector() -> None:
    """What is loaded by now stays: the garbage collector need not walk through it again and again,
    nor stop the streams for it. Requests leave no cycles behind, so it is rarely needed at all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def _keep_memory() -> None:
    """Of what is freed, some is kept for the next large bodies. glibc would give it back to the
    kernel at once, and have it again page by page: of a body of 256 KiB that is a fifth of all
    work."""
    set_malloc({Option.TRIM_THRESHOLD: _KEPT_BYTES, Option.MMAP_THRESHOLD: _MAPPED_BYTES})


async def know_replicas(source: ReplicaSource) -> None:
    """Return when replicas that take requests are known, and no more of them come up; or after a
    time in which those that live would have been found."""
    loop = asyncio.get_running_loop()
    begun_s = changed_s = loop.time()
    known: Sequence[Replica] = ()

    def take(replicas: Sequence[Replica]) -> None:
        nonlocal changed_s, known
        changed_s, known = loop.time(), replicas

    source.subscribe(take)
    while (now_s := loop.time()) < begun_s + _KNOW_TIMEOUT_S:
        if now_s >= changed_s + _SETTLED_S and any(item.takes_requests for item in known):
            return
        await asyncio.sleep(_PAUSE_S)
    usable = sum(item.takes_requests for item in known)
    log.warning("serving though not all is known yet: %d replicas take requests", usable)


def _loads(service: Service) -> Loads | None:
    """Requests at replicas of all processes that serve this on the host; None: not to be had."""
    try:
        return Loads.open(loads_path(service.identity))
    except StateError as error:
        log.warning("not known what other routers of this host send: %s", error)
        return None


def _quotas(service: Service) -> SharedQuotas | None:
    """What keys have used in all processes that serve this on the host; None: not to be had."""
    try:
        return SharedQuotas.open(service.identity)
    except StateError as error:
        log.warning("the limits of keys are counted by each process alone: %s", error)
        return None


def _keys_step(keys: ClientKeys) -> Step:
    def refresh() -> None:
        if keys.refresh():
            log.info("client keys read")

    return refresh
