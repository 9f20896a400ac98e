"""A router of several processes: the parent of those that serve.

It holds the listening sockets, starts a worker for each, and another one when one dies or hangs;
the connections that waited for that one wait for the next. On SIGHUP it replaces the workers one
by one: the new one serves before the old one stops taking connections.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from exaslurm.errors import ExaslurmError, NotReadyError, StateError
from exaslurm.gateway.figures import fold, own_directory, remove_directory
from exaslurm.gateway.follow import Step, Watch
from exaslurm.gateway.former import Former
from exaslurm.gateway.handover import Offer, Predecessor
from exaslurm.gateway.known import Known
from exaslurm.gateway.listeners import Listeners
from exaslurm.gateway.service import Service
from exaslurm.gateway.supervised import keep_supervisor
from exaslurm.gateway.tls import Certificate
from exaslurm.gateway.worker import BEAT_S, GRACE_S, Worker, exit_text
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import write_on

log = logging.getLogger(__name__)

# A worker that dies again and again is started after this long, doubled each time, up to the most.
_BACKOFF_S = 0.1
_MOST_BACKOFF_S = 5.0
_PROVEN_S = 60.0
_FILE_TIMEOUT_S = 10.0


class Parent:
    """``argv``: the options it was started with. ``predecessor``: whose place it takes.
    ``supervise``: have the deployment's jobs looked after, too. ``former``: the helper that served
    while it started again, one process by then."""

    def __init__(
        self,
        service: Service,
        listeners: Listeners,
        certificate: Certificate | None,
        argv: Sequence[str],
        *,
        predecessor: Predecessor | None = None,
        supervise: bool = False,
        former: Former | None = None,
    ) -> None:
        self._service = service
        self._listeners = listeners
        self._certificate = certificate
        self._argv = argv
        self._predecessor = predecessor
        self._supervise = supervise and service.has_jobs
        self._count = service.front.workers
        self._places: list[Worker | None] = [None] * self._count
        self._locks = [asyncio.Lock() for _ in range(self._count)]
        self._failures = [0] * self._count
        self._workers: set[Worker] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._ending = False
        self._stopped = False
        self._given_away = False
        self._rolling = False
        self._former = former
        self._served = predecessor is not None or former is not None

    async def run(self) -> None:
        """Until all workers have ended. ExaslurmError if one of them cannot start at first."""
        self._files = IoThread("files")
        write_on(self._files)
        self._figures = own_directory()
        self._known = Known(self._service, self._listeners, self._certificate)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        # With a helper who serves there is time to try again.
        fill = self._fill if self._former is None else self._refill
        try:
            await asyncio.gather(*(fill(index) for index in range(self._count)))
            self._served = True
            if not self._ending:
                await self._known.publish(self._files)
                await self._release()
                self._begin(self._look())
                self._begin(self._offer())
                if self._supervise and self._service.run_dir is not None:
                    self._begin(keep_supervisor(self._service.run_dir))
                self._begin(Watch(self._steps(), self._files, self._end).run())
            await self._ended.wait()
        finally:
            self._end("the parent ends")
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._wait_for_workers()
            if self._former is not None and not self._given_away:
                await self._former.end(timeout_s=self._service.front.drain_s + GRACE_S)
            await self._known.withdraw(self._files)
            self._listeners.close()
            remove_directory(self._figures)
        log.info("ended")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _steps(self) -> list[Step]:
        own: list[Step] = []
        if self._certificate is not None:
            own.append(self._certificate.refresh)
        return [*own, *self._known.steps()]

    async def _release(self) -> None:
        """Tell who started it where it listens, and who served until now that it serves."""
        if self._former is not None:
            self._former.tell("leave")
            log.info("it serves again, in place of its helper")
        else:
            self._known.announce()
        if self._predecessor is None:
            return
        try:
            await asyncio.to_thread(self._predecessor.release)
        except StateError as error:
            log.warning("%s", error)

    async def _offer(self) -> None:
        bind = self._service.front.bind
        try:
            await Offer(self._service.identity, bind, self._listeners, self._leave).run()
        except ExaslurmError as error:
            log.warning("no other router can take over from this one: %s", error)

    async def _leave(self) -> None:
        """Another router serves on our sockets."""
        self._given_away = True
        self._known.given_away()
        await self._known.withdraw(self._files)
        self._end("another router has taken its place", word="leave")

    # Workers.

    async def _fill(self, index: int) -> None:
        """Put a new worker in a place, once it serves; the one that was there leaves.
        NotReadyError if it does not start."""
        async with self._locks[index]:
            name = f"worker {index + 1}"
            listeners = self._listeners.share(index, self._count)
            fresh = await Worker.start(
                self._argv, listeners, name, figures=self._figures, warm=self._served
            )
            self._workers.add(fresh)
            self._begin(self._mourn(fresh, index))
            try:
                await fresh.ready()
            except NotReadyError:
                fresh.leaving = True
                fresh.kill()
                raise
            before, self._places[index] = self._places[index], fresh
            log.info("%s serves", fresh)
            if before is not None:
                before.tell("leave")
            if self._ending:  # it was not there yet when the others were told
                fresh.tell("stop")

    async def _mourn(self, worker: Worker, index: int) -> None:
        """Wait for its end, and see to it that another one takes its place."""
        begun_s = time.monotonic()
        code = await worker.process.wait()
        worker.close()
        self._workers.discard(worker)
        if self._ending and not self._workers:
            self._ended.set()
        if self._ending:
            return
        if not worker.leaving:
            log.warning("%s has ended: %s", worker, exit_text(code))
        if self._places[index] is worker:
            self._places[index] = None
            if time.monotonic() - begun_s > _PROVEN_S:
                self._failures[index] = 0
            self._begin(self._refill(index))
        await self._fold()

    async def _look(self) -> None:
        """End workers that hang."""
        while True:
            await asyncio.sleep(BEAT_S)
            for worker in self._workers:
                if worker.hangs():
                    log.error("%s hangs: killing it", worker)
                    worker.kill()

    async def _fold(self) -> None:
        if self._figures is None:
            return
        try:
            await self._files.run(fold, self._figures, timeout_s=_FILE_TIMEOUT_S)
        except (ExaslurmError, OSError) as error:
            log.warning("figures of ended workers: %s", error)

    async def _refill(self, index: int) -> None:
        while not self._ending and self._places[index] is None:
            wait_s = min(_BACKOFF_S * 2 ** self._failures[index], _MOST_BACKOFF_S)
            self._failures[index] = min(self._failures[index] + 1, 10)
            await asyncio.sleep(wait_s)
            try:
                await self._fill(index)
            except (NotReadyError, OSError) as error:
                log.error("%s", error)

    async def _roll(self) -> None:
        """Replace the workers one by one; stop at the first that does not start."""
        log.info("replacing the workers")
        try:
            for index in range(self._count):
                if self._ending:
                    return
                self._failures[index] = 0
                await self._fill(index)
            log.info("all workers are replaced")
        except (NotReadyError, OSError) as error:
            log.error("going on with the old workers: %s", error)
        finally:
            self._rolling = False

    # The end.

    def _on_signal(self, number: signal.Signals) -> None:
        meaning = self._known.hangup() if number == signal.SIGHUP else "end"
        if meaning != "end":
            if meaning == "again" and not self._rolling and not self._ending:
                self._rolling = True
                self._begin(self._roll())
        elif self._stopped:
            log.warning("%s again: ending at once", number.name)
            self._tell_all("now")
        else:
            self._stopped = True
            if self._ending:  # another router has taken over, and there was no hurry
                self._tell_all("stop")
            self._end(number.name)

    def _end(self, reason: str, word: str = "stop") -> None:
        if self._ending:
            return
        log.info("ending when the requests at hand are done: %s", reason)
        self._ending = True
        self._tell_all(word)
        if not self._workers:
            self._ended.set()

    def _tell_all(self, word: str) -> None:
        for worker in self._workers:
            worker.tell(word)
        if self._former is not None:
            self._former.tell(word)

    async def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + self._service.front.drain_s + GRACE_S
        for worker in list(self._workers):
            await worker.end(timeout_s=max(0.0, deadline - time.monotonic()))
            self._workers.discard(worker)
