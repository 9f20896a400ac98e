"""Look, decide, act; again and again."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from exaslurm.core.codec import dumps
from exaslurm.core.submission import SupervisorNotes
from exaslurm.errors import DeploymentError, ExaslurmError
from exaslurm.rundir import RunDir
from exaslurm.supervisor.act import Actor
from exaslurm.supervisor.decide import decide
from exaslurm.supervisor.model import Decision, World
from exaslurm.supervisor.observe import Look, Observer
from exaslurm.supervisor.waking import WakeWatch
from exaslurm.util.clock import MACHINE
from exaslurm.util.files import write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import write_on
from exaslurm.util.presence import Presence
from exaslurm.util.process import start_ticks
from exaslurm.util.waiting import set_within

log = logging.getLogger(__name__)

# One round asks Slurm with its time limits, and acts; on a file system that hangs it hangs too.
_ROUND_S = 900.0
# Where replicas come and go by what there is to do, that is looked at so often, and so often it is
# looked whether a router waits for a first replica.
_SCALED_S, _WAKE_S = 5.0, 1.0
# After a round that could not be carried out.
_TROUBLE_S = 10.0


class Manager(Protocol):
    """Changes what is wanted, as time goes on: roll-out, scaling."""

    def step(self, look: Look) -> bool:
        """Look, and write down what is wanted from now on; whether that was anything. Called each
        round, under no lock. StateError, DeploymentError (the lock is taken)."""
        ...


class Supervisor:
    """Looks after one deployment. Everything it must not forget is in the run directory."""

    def __init__(
        self,
        run_dir: RunDir,
        observer: Observer,
        actor: Actor,
        *,
        managers: Sequence[Manager] = (),
        clock: Callable[[], float] = time.time,
        machine_s: Callable[[float], float] = MACHINE.machine_s,
    ) -> None:
        self._run_dir = run_dir
        self._observer = observer
        self._actor = actor
        self._managers = managers
        self._clock = clock
        self._machine_s = machine_s
        self._presence = Presence(run_dir.path)
        self._said: tuple[Mapping[str, str], str | None] | None = None
        # When it was asked last, and for how long that is good enough.
        self._asked_slurm_s, self._asked_for_s = -math.inf, 0.0
        self._wake = WakeWatch(run_dir)

    def round(self) -> World:
        """Look once and do what follows. The first effect that cannot be carried out for want of
        the run directory ends the round: StateError, DeploymentError."""
        now_s = self._clock()
        # Also where the clock was put back.
        due = not 0 <= now_s - self._asked_slurm_s < self._asked_for_s
        look = self._observer.look(ask_slurm=due)
        if due:
            self._asked_slurm_s = now_s
            self._asked_for_s = look.world.poll_s if look.world.scaled else 0.0
        if look.world.wanted and self._manage(look):
            look = self._observer.again(look)
        decision = decide(look.world, self._clock())
        if look.world.wanted:
            self._note(decision, look.world.slurm_error)
            for effect in decision.effects:
                self._actor.do(effect, look)
        return look.world

    def _manage(self, look: Look) -> bool:
        """Whether something else is wanted now. A manager that fails costs no cell its job."""
        steps = [_stepped(manager, look) for manager in self._managers]
        return any(steps)

    def _checked_round(self) -> World:
        """As ``round``; _RemovedError where there is nothing left to look after."""
        self._presence.look()
        try:
            return self.round()
        except ExaslurmError as error:
            if self._presence.look() == "removed":
                raise _RemovedError(f"{self._run_dir.path} is gone") from error
            raise

    async def run(self, *, while_parent: int | None = None) -> bool:
        """Until the deployment is to stop (then true), or SIGTERM. ``while_parent``: until this
        process is no longer the parent of ours. DeploymentError if there is no such deployment."""
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        worker = IoThread("supervisor")
        write_on(worker)
        while not ending.is_set():
            pause_s, scaled = _TROUBLE_S, False
            begun = asyncio.ensure_future(worker.run(self._checked_round, timeout_s=_ROUND_S))
            end = asyncio.ensure_future(ending.wait())
            await asyncio.wait({begun, end}, return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if not begun.done():
                begun.cancel()
                break  # it can be ended anywhere
            try:
                world = begun.result()
                if not world.wanted:
                    log.info("the deployment is to stop: ending")
                    return True
                pause_s, scaled = world.poll_s, world.scaled
            except _RemovedError:
                raise
            except (ExaslurmError, OSError) as error:
                log.warning("this round came to nothing: %s", error)
            if while_parent is not None and os.getppid() != while_parent:
                log.info("the gateway has ended: ending")
                return False
            if scaled:
                await self._pause(worker, ending, min(pause_s, _SCALED_S))
            else:
                await set_within(ending, self._machine_s(pause_s))
        return False

    async def _pause(self, worker: IoThread, ending: asyncio.Event, pause_s: float) -> None:
        """Until the next round, which begins at once when somebody waits for a first replica."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._machine_s(pause_s)
        while not ending.is_set() and (left_s := until_s - loop.time()) > 0:
            await set_within(ending, min(left_s, self._machine_s(_WAKE_S)))
            try:
                if await worker.run(self._wake.is_new, timeout_s=_TROUBLE_S):
                    return
            except (ExaslurmError, OSError) as error:
                log.warning("looking for requests that wait: %s", error)
                await set_within(ending, max(0.0, until_s - loop.time()))
                return

    def _note(self, decision: Decision, trouble: str | None) -> None:
        """Leave for ``status`` what there is to say, if it is something new."""
        said = (decision.notes, trouble)
        if said == self._said:
            return
        for cell, note in decision.notes.items():
            if self._said is None or self._said[0].get(cell) != note:
                log.info("cell %s: %s", cell, note)
        if trouble is not None:
            log.warning("going on without Slurm: %s", trouble)
        pid = os.getpid()
        notes = SupervisorNotes(
            host=socket.gethostname(),
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
            time_s=round(self._clock(), 3),
            cells=decision.notes,
            trouble=trouble,
        )
        write_atomic(self._run_dir.supervisor, dumps(notes, indent=1))
        self._said = said


class _RemovedError(DeploymentError):
    """The deployment was removed while it ran."""


def _stepped(manager: Manager, look: Look) -> bool:
    try:
        return manager.step(look)
    except ExaslurmError as error:
        log.warning("%s: %s", type(manager).__name__, error)
    except Exception as error:  # nobody foresaw it: the jobs are looked after all the same
        log.error("%s: %r", type(manager).__name__, error)
        log.debug("%s", type(manager).__name__, exc_info=True)
    return False
