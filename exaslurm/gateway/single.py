"""A router in one process: it serves, makes itself known, and gives way to a new one.

On SIGHUP it becomes itself anew, with the program and the files as they are by then: a worker
serves on the same sockets while it finishes its requests, executes itself (pid and sockets stay),
and takes over from the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence

from exaslurm.errors import ExaslurmError, StateError
from exaslurm.gateway.figures import own_directory, remove_directory
from exaslurm.gateway.former import Former
from exaslurm.gateway.handover import Offer, Predecessor
from exaslurm.gateway.known import Known
from exaslurm.gateway.listeners import Listeners, inheritable
from exaslurm.gateway.process import Process
from exaslurm.gateway.service import Service
from exaslurm.gateway.tls import Certificate
from exaslurm.gateway.worker import GRACE_S, Worker, command, exit_text

log = logging.getLogger(__name__)

# A helper that dies again and again is replaced after this long, doubled each time, up to the most.
_BACKOFF_S = 0.1
_MOST_BACKOFF_S = 5.0


class Single:
    """``argv``: the options it was started with. ``predecessor``: whose place it takes.
    ``former``: the helper that served while it started again."""

    def __init__(
        self,
        service: Service,
        listeners: Listeners,
        certificate: Certificate | None,
        argv: Sequence[str],
        *,
        predecessor: Predecessor | None = None,
        former: Former | None = None,
    ) -> None:
        self._service = service
        self._listeners = listeners
        self._certificate = certificate
        self._argv = argv
        self._predecessor = predecessor
        self._former = former
        self._helper: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._restarting = False
        self._stopped = False
        self._given_away = False

    async def run(self) -> None:
        """Serve until it ends; does not return if it shall start again. ExaslurmError if it cannot
        serve."""
        self._known = Known(self._service, self._listeners, self._certificate)
        self._figures = own_directory()
        self._process = Process(
            self._service,
            self._listeners.copies(),
            self._certificate,
            figures=self._figures,
            warm=self._predecessor is not None or self._former is not None,
            steps=self._known.steps(),
            on_ready=self._ready,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        offering = asyncio.create_task(self._offer())
        try:
            await self._process.run()
        finally:
            offering.cancel()
            await asyncio.gather(offering, return_exceptions=True)
            over = self._stopped or self._given_away
            if self._helper is not None and self._restarting and not over:
                self._become_new(self._helper)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            await self._known.withdraw(self._process.files)
            self._listeners.close()
            if self._helper is not None:
                await self._helper.end(timeout_s=self._service.front.drain_s + GRACE_S)
            if self._former is not None and not self._given_away:
                await self._former.end(timeout_s=self._service.front.drain_s + GRACE_S)
            remove_directory(self._figures)
        log.info("ended")

    async def _ready(self) -> None:
        await self._known.publish(self._process.files)
        if self._former is not None:
            self._former.tell("leave")
            log.info("it serves again, in place of its helper")
        else:
            self._known.announce()
        if self._predecessor is not None:
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
        await self._known.withdraw(self._process.files)
        self._process.stop("another router has taken its place", succeeded=True)

    def _on_signal(self, number: signal.Signals) -> None:
        meaning = self._known.hangup() if number == signal.SIGHUP else "end"
        if meaning != "end":
            if meaning == "again" and not self._restarting and not self._process.stopping:
                self._restarting = True
                self._task = asyncio.create_task(self._start_again())
            return
        if self._stopped:
            self._process.end_now(f"{number.name} again")
            for helper in (self._helper, self._former):
                if helper is not None:
                    helper.tell("now")
        elif self._former is not None:
            self._former.tell("stop")
        self._stopped = True
        self._process.stop(number.name)

    async def _start_again(self) -> None:
        log.info("starting again: requests at hand are finished, new ones served by a helper")
        try:
            self._helper = await self._start_helper()
            await self._helper.ready()
        except (ExaslurmError, OSError) as error:
            log.error("not started again, going on as before: %s", error)
            if self._helper is not None:
                await self._helper.end()
            self._helper, self._restarting = None, False
            return
        self._process.stop("starting again", succeeded=True)
        await self._keep_helper(self._helper)

    async def _start_helper(self) -> Worker:
        return await Worker.start(
            self._argv, self._listeners, "helper", figures=self._figures, warm=True
        )

    async def _keep_helper(self, helper: Worker) -> None:
        """See to it that somebody serves while requests at hand are finished, which may take
        long."""
        wait_s = _BACKOFF_S
        while True:
            code = await helper.ended()
            if self._stopped or self._given_away:
                return
            log.warning("%s has ended, starting another one: %s", helper, exit_text(code))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_BACKOFF_S)
            try:
                fresh = await self._start_helper()
            except OSError as error:
                log.error("no other helper yet: %s", error)
                continue
            # Not before: the old one's descriptor is what the next program is given.
            self._helper = fresh
            helper.close()
            helper = fresh
            try:
                await helper.ready()
            except ExaslurmError as error:
                log.error("%s", error)
                helper.kill()

    def _become_new(self, helper: Worker) -> None:
        """Returns only if the program cannot be started."""
        # Another one of these would end the new program as long as it cannot handle it: it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if self._known.under_nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        inheritable([*self._listeners.all, helper.control])
        helpers = [f"{helper.pid}:{helper.control.fileno()}"]
        if self._former is not None:
            helpers += self._former.keep()
        argv = [*command(self._argv, self._listeners), "--helper", ",".join(helpers)]
        try:
            os.execv(argv[0], argv)
        except OSError as error:
            log.error("cannot start again, ending: %s: %s", argv[0], error)
