"""One ``srun`` of the batch script: started, watched, signalled, ended."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from exaslurm.errors import CommandNotFound
from exaslurm.util.hostlist import expand
from exaslurm.util.waiting import within

# What srun says while Slurm does not let the step start (src/api/step_launch.c, srun/libsrun).
_WAITS = re.compile(r"step creation (temporarily|still) disabled", re.IGNORECASE)
_STARTED = re.compile(r"step created", re.IGNORECASE)
# "srun: error: n1: task 0: Killed", "srun: error: n[1-2]: tasks 0-1,4: Exited with exit code 1"
_TASKS_ENDED = re.compile(r"(\S+): tasks? ([0-9,-]+): (.*)")
_LAST_LINES = 20

# What tells init to drain and stop. Not SIGTERM, which srun does not pass on: it answers with
# "forcing job termination" and has every task killed at once (src/srun, _srun_signal_mgr).
STOP = signal.SIGUSR2


class Step:
    """A running ``srun``. ``name`` is what it is called in messages."""

    def __init__(self, name: str, argv: Sequence[str], say: Callable[[str], None]) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.waits_since: float | None = None
        self.failed_tasks: set[int] = set()
        # Node -> how its task ended.
        self.ended: dict[str, str] = {}
        self._say = say
        self._stopped = False
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, environ: Mapping[str, str]) -> None:
        """Start srun in a process group of its own: a signal to the batch script's group must
        reach it through us, once. Raises CommandNotFound."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=dict(environ),
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise CommandNotFound(
                f"cannot run {self.argv[0]!r} on this node: {error.strerror}",
                remedy="put Slurm's bin directory on PATH in the site config's prologue",
            ) from None
        self._reader = asyncio.create_task(self._read())
        if self._stopped:  # while it was being started
            self.signal(STOP)

    @property
    def returncode(self) -> int | None:
        """srun's exit code; negative if a signal ended it; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def wait(self) -> int:
        """Wait for srun to end and for its last words."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        # Somebody may have inherited the pipe; srun's own words are there already.
        await asyncio.wait([self._reader], timeout=1.0)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Signal srun, which passes it on to its tasks. Before it runs only ``STOP`` is kept for
        it: srun does not outlive other signals until it has set itself up for them."""
        self._stopped |= number == STOP
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, *, grace_s: float) -> None:
        """Tell the tasks to stop; then have srun kill them, then kill srun."""
        steps = [(signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)]
        if self.waits_since is None:  # else there are no tasks yet
            steps.insert(0, (STOP, grace_s))
        for number, limit_s in steps:
            if self.returncode is not None or self._process is None:
                break
            self.signal(number)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._process.wait(), limit_s)
        if self._reader is not None:
            self._reader.cancel()

    def waiting_s(self) -> float:
        """For how long Slurm has been refusing to start the step; 0 if it does not."""
        return 0.0 if self.waits_since is None else time.monotonic() - self.waits_since

    def last_words(self) -> str:
        """What srun said last, on one line."""
        return "; ".join(list(self.lines)[-3:]) or "nothing"

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while True:
            try:
                raw = await self._process.stderr.readline()
            except ValueError:  # a line longer than the buffer: skipped
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").strip()
            if not line:
                continue
            self.lines.append(line)
            if _WAITS.search(line):
                self.waits_since = self.waits_since or time.monotonic()
            elif _STARTED.search(line):
                self.waits_since = None
            ended = _TASKS_ENDED.search(line)
            if ended is not None:
                with contextlib.suppress(ValueError):
                    self.failed_tasks |= {int(number) for number in expand(f"[{ended[2]}]")}
                    self.ended |= dict.fromkeys(expand(ended[1]), ended[3].strip())
            self._say(f"{self.name}: {line}")
