"""The processes that init runs for the agent: start, signal, find again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import signal
from pathlib import Path
from typing import Any

from exaslurm.core.codec import dumps
from exaslurm.core.execspec import ExecSpec
from exaslurm.errors import AllocationError
from exaslurm.util.waiting import set_within, within

log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_POLL_S = 0.25
_TRACKERS_S = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """A process of init's. ``exit`` is its exit code (negative: the signal), None while it
    lives; times are Unix seconds."""

    name: str
    pid: int
    start: int
    started_s: float
    exit: int | None = None
    ended_s: float | None = None


class InitGoneError(AllocationError):
    """Init does not answer: nothing can be started or signalled any more."""


class Children:
    """Init's table of processes, refreshed a few times a second."""

    def __init__(self, node_dir: Path) -> None:
        self.started_s = 0.0
        self.init_pid = 0
        # For every process that is started, unless its own spec says otherwise.
        self.common_env: dict[str, str] = {}
        self._node_dir = node_dir
        self._socket = node_dir / "init.sock"
        self._lock = asyncio.Lock()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._table: dict[str, Child] = {}
        self._changed = asyncio.Event()

    def get(self, name: str) -> Child | None:
        """The child of that name, as last seen."""
        return self._table.get(name)

    def names(self) -> list[str]:
        """Names of all children, also of those that ended."""
        return sorted(self._table)

    async def refresh(self) -> None:
        """Ask init for its table."""
        answer = await self._ask({"op": "list"})
        self.started_s = answer["started_s"]
        self.init_pid = answer["pid"]
        table = {item["name"]: Child(**item) for item in answer["children"]}
        if table != self._table:
            self._table = table
            self._changed.set()
            self._changed = asyncio.Event()

    async def keep_fresh(self) -> None:
        """Refresh for ever; raises InitGoneError if init has died. One that is alive and slow (a
        node out of memory) is waited for."""
        silent = False
        while True:
            try:
                await self.refresh()
                silent = False
            except InitGoneError as error:
                if os.getppid() != self.init_pid:
                    raise
                if not silent:
                    log.error("%s: trying again", error)
                silent = True
            await asyncio.sleep(_POLL_S)

    async def spawn(self, name: str, spec: ExecSpec) -> Child:
        """Start a program under a name that no living child has."""
        spec = dataclasses.replace(
            spec, env={**self.common_env, **spec.env}, cwd=spec.cwd or str(self._node_dir)
        )
        directory = self._node_dir / "exec"
        directory.mkdir(mode=0o700, exist_ok=True)
        file = directory / f"{secrets.token_hex(8)}.json"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(dumps(spec))
        try:
            answer = await self._ask({"op": "spawn", "name": name, "exec_file": str(file)})
        except BaseException:
            with contextlib.suppress(OSError):
                file.unlink()
            raise
        child = Child(**answer["child"])
        self._table[name] = child
        log.info("%s is pid %d", name, child.pid)
        return child

    async def signal(
        self,
        child: Child,
        number: signal.Signals,
        *,
        session: bool = False,
        spare_trackers: bool = False,
    ) -> int:
        """Signal a child, or every process that came from it; how many there are of them.

        ``spare_trackers``: not the resource trackers of Python's multiprocessing, which clean up
        and end by themselves once all others are gone.
        """
        request = {
            "op": "signal",
            "name": child.name,
            "pid": child.pid,
            "start": child.start,
            "sig": int(number),
            "session": session,
            "spare": spare_trackers,
        }
        with contextlib.suppress(RefusedByInitError):  # it has ended, or been replaced
            return int((await self._ask(request))["sent"])
        return 0

    async def members(self, child: Child) -> list[int]:
        """Living processes that came from a child."""
        with contextlib.suppress(RefusedByInitError):
            return list((await self._ask({"op": "members", "name": child.name}))["pids"])
        return []

    async def forget(self, name: str) -> None:
        """Drop an ended child from init's table."""
        with contextlib.suppress(RefusedByInitError):
            await self._ask({"op": "forget", "name": name})
        self._table.pop(name, None)

    async def wait_exit(self, child: Child, timeout_s: float) -> Child | None:
        """The ended child; None if it still lives after ``timeout_s``."""

        def ended() -> bool:
            now = self._table.get(child.name)
            return now is None or now.pid != child.pid or now.exit is not None

        deadline = asyncio.get_running_loop().time() + timeout_s
        while not ended():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0 or not await set_within(self._changed, left_s):
                return None
        now = self._table.get(child.name)
        if now is None or now.pid != child.pid:
            return dataclasses.replace(child, exit=-int(signal.SIGKILL))
        return now

    async def end_session(self, child: Child, grace_s: float, kill_s: float = 10.0) -> bool:
        """End a child: SIGTERM to itself, after ``grace_s`` SIGKILL to all that came from it.

        True when none of them is left; false if some will not die within ``kill_s``.
        """
        if grace_s > 0 and await self.signal(child, signal.SIGTERM):
            await self.wait_exit(child, grace_s)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while await self.signal(
            child,
            signal.SIGKILL,
            session=True,
            spare_trackers=loop.time() < began + _TRACKERS_S,
        ):
            if loop.time() > began + kill_s:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            try:
                answer = await within(self._exchange(message), _ANSWER_S)
            except (OSError, ValueError, EOFError, asyncio.TimeoutError) as error:
                self.close()
                raise InitGoneError(f"init does not answer on {self._socket}") from error
            except BaseException:
                self.close()  # cancelled half-way: the next answer would be this one's
                raise
        if not answer.get("ok"):
            raise RefusedByInitError(f"init refused {message['op']}: {answer.get('error')}")
        return answer

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._stream is None:
            self._stream = await asyncio.open_unix_connection(str(self._socket), limit=1 << 22)
        reader, writer = self._stream
        writer.write(json.dumps(message).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise EOFError("connection closed")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


class RefusedByInitError(AllocationError):
    """Init understood and said no."""
