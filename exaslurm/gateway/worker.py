"""A worker: a process that serves for a parent, and the parent's handle on it.

Both talk over a socket pair: the worker says ``ready``, and ``alive`` every second from then on;
the parent says ``leave`` (another worker serves on the same sockets), ``stop`` (finish what is
begun) or ``now``. A worker whose parent is gone finishes what is begun, in the drain time unless it
was to leave; one that is not heard any more hangs, and is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from exaslurm.errors import NotReadyError
from exaslurm.gateway.listeners import Listeners
from exaslurm.gateway.options import GatewayOptions
from exaslurm.gateway.service import Service

log = logging.getLogger(__name__)

# What a worker may take beyond its drain time.
GRACE_S = 15.0
_START_S = 60.0
_END_S = 10.0
BEAT_S = 1.0
# So many looks in a row, one each BEAT_S, at which nothing had been heard. Looks are counted, not
# seconds: where the machine stood still, so did the parent.
_HANGS_LOOKS = 15
_NOT_FOR_WORKERS = frozenset(("--replace",))


def command(argv: Sequence[str], listeners: Listeners) -> list[str]:
    """The command line of a process with the same options that inherits these sockets."""
    kept = [word for word in argv if word not in _NOT_FOR_WORKERS]
    return [sys.executable, "-m", "exaslurm.gateway", *kept, "--sockets", listeners.to_text()]


class Worker:
    """A running worker, as its parent sees it. ``name`` is for the log."""

    def __init__(
        self, process: asyncio.subprocess.Process, control: socket.socket, name: str
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.control = control
        self.name = name
        self.leaving = False
        self._silent_looks: int | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        listeners: Listeners,
        name: str,
        *,
        figures: Path | None,
        warm: bool,
    ) -> Worker:
        """Start one on these sockets; ``figures``: where it puts its own; ``warm``: the sockets
        were served before. OSError if the system refuses."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            fds = [*(sock.fileno() for sock in listeners.all), theirs.fileno()]
            process = await asyncio.create_subprocess_exec(
                *command(argv, listeners),
                *("--control-fd", str(theirs.fileno())),
                *(["--figures", os.fspath(figures)] if figures is not None else []),
                *(["--warm"] if warm else []),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=fds,
                # Ctrl-C in a terminal is for the parent, which lets its workers finish.
                start_new_session=True,
            )
        return cls(process, ours, name)

    async def ready(self) -> None:
        """Return when it serves. NotReadyError if it ends before, or takes too long."""
        loop = asyncio.get_running_loop()
        try:
            said = await asyncio.wait_for(loop.sock_recv(self.control, 64), _START_S)
        except asyncio.TimeoutError:
            raise NotReadyError(f"{self} has not started within {_START_S:g} s") from None
        except OSError:
            said = b""
        if not said:
            code = await self.process.wait()
            raise NotReadyError(f"{self} ended at its start ({exit_text(code)})")
        self._silent_looks = 0
        loop.add_reader(self.control, self._hear)

    def _hear(self) -> None:
        try:
            said = self.control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._silent_looks = 0 if said else None
        if not said:  # it ends, and its process is waited for
            asyncio.get_running_loop().remove_reader(self.control)

    def hangs(self) -> bool:
        """Asked each ``BEAT_S``: whether it serves, and has not been heard for a long time."""
        if self._silent_looks is None:
            return False
        self._silent_looks += 1
        return self._silent_looks > _HANGS_LOOKS

    async def ended(self) -> int:
        """Its exit code when it has ended; until then it is looked after, and killed if it
        hangs."""
        ended = asyncio.create_task(self.process.wait())
        try:
            while not ended.done():
                await asyncio.wait((ended,), timeout=BEAT_S)
                if not ended.done() and self.hangs():
                    log.error("%s hangs: killing it", self)
                    self.kill()
        finally:
            ended.cancel()
        return ended.result()

    def tell(self, word: str) -> None:
        """``leave``, ``stop`` or ``now``. One that is gone hears nothing."""
        self.leaving = True
        with contextlib.suppress(OSError):
            self.control.send(word.encode() + b"\n")

    async def end(self, *, timeout_s: float = _END_S) -> None:
        """Have it finish what is begun; end it if that takes too long."""
        self.tell("stop")
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except asyncio.TimeoutError:
            log.warning("%s does not end: killing it", self)
            self.kill()
            await self.process.wait()
        self.close()

    def close(self) -> None:
        """The process has ended."""
        if self._silent_looks is not None:
            self._silent_looks = None
            asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


class Control:
    """The worker's end of the line to its parent."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)

    async def say_ready(self) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, b"ready\n")

    async def beat(self) -> None:
        """Say that the event loop turns, until cancelled."""
        while True:
            with contextlib.suppress(OSError):  # nor does a parent that hangs hold it up
                self._socket.send(b"alive\n")
            await asyncio.sleep(BEAT_S)

    async def words(self) -> AsyncIterator[str]:
        """What the parent says; ends when the parent does."""
        loop = asyncio.get_running_loop()
        rest = b""
        while True:
            try:
                said = await loop.sock_recv(self._socket, 64)
            except ConnectionResetError:
                return
            if not said:
                return
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                yield line.decode()


async def run_worker(service: Service, options: GatewayOptions) -> None:
    """Serve on inherited sockets until the parent says otherwise. ExaslurmError if that cannot
    be."""
    from exaslurm.gateway.process import Process
    from exaslurm.gateway.tls import certificate_of

    assert options.control_fd is not None
    assert options.sockets is not None
    control = Control(options.control_fd)
    told: list[asyncio.Task[None]] = []

    async def say_ready() -> None:
        await control.say_ready()
        told.append(asyncio.create_task(control.beat()))

    process = Process(
        service,
        Listeners.of_text(options.sockets),
        certificate_of(service.front.tls),
        figures=options.figures,
        warm=options.warm,
        on_ready=say_ready,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop, number.name)
    # Its parent starts another one in its place.
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP is for the parent process")

    async def obey() -> None:
        word = ""
        async for word in control.words():
            if word == "now":
                process.end_now("asked to")
            else:
                process.stop("asked to", succeeded=word == "leave")
        process.stop("its parent is gone", succeeded=word == "leave")

    told.append(asyncio.create_task(obey()))
    try:
        await process.run()
    finally:
        for task in told:
            task.cancel()
        await asyncio.gather(*told, return_exceptions=True)


def exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
