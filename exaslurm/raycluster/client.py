"""The controller's side of the Ray driver: asyncio, every call with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections.abc import Mapping
from typing import Any

from exaslurm.errors import ExaslurmError
from exaslurm.util.waiting import within

_MAX_LINE = 64 * 1024 * 1024
_CLOSE_S = 2.0


class RayError(ExaslurmError):
    """The cell's Ray cannot be talked to, or refused something."""

    transient = True


class RayClient:
    """One driver process, for one Ray cluster. Not for reuse after ``close``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {
            0: asyncio.get_running_loop().create_future()
        }
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(
        cls, address: str, environ: Mapping[str, str], *, deadline_s: float
    ) -> RayClient:
        """Start the driver and wait until it is connected to the GCS at ``HOST:PORT``.

        ``environ`` is its whole environment, with ``start.auth_env``. Raises RayError.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "exaslurm.raycluster.driver",
            "--address", address, "--deadline-s", str(deadline_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environ),
            limit=_MAX_LINE,
        )  # fmt: skip
        client = cls(process)
        try:
            await client._answer(0, deadline_s + 10.0, "connect")
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def is_alive(self) -> bool:
        """Whether the driver process runs; Ray ends it some time after the GCS is gone."""
        return self._process.returncode is None and not self._reader.done()

    async def nodes(self, *, timeout_s: float) -> list[dict[str, Any]]:
        """Ray's nodes: ``node_id``, ``address``, ``alive``, ``labels``, ``resources``."""
        found: list[dict[str, Any]] = await self._call("nodes", timeout_s)
        return found

    async def set_groups(
        self, groups: Mapping[str, Mapping[str, Any]], *, timeout_s: float
    ) -> dict[str, str]:
        """Make the placement groups be these, and no others; answers each one's state."""
        states: dict[str, str] = await self._call("groups", timeout_s, groups=groups)
        return states

    async def group_states(self, *, timeout_s: float) -> dict[str, str]:
        """The state of each placement group of ours, by name."""
        states: dict[str, str] = await self._call("group_states", timeout_s)
        return states

    async def close(self) -> None:
        """End the driver."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        # Not for ever: asyncio waits for the pipes too, which a child of the driver may hold.
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._process.wait(), _CLOSE_S)
        self._reader.cancel()
        self._fail("the Ray driver was closed")
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _call(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        if not self.is_alive or self._process.stdin is None:
            raise RayError("the Ray driver has ended")
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "op": op, **arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            await within(self._process.stdin.drain(), timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            self._waiting.pop(number, None)
            raise RayError(f"the Ray driver does not take requests ({op})") from error
        return await self._answer(number, timeout_s, op)

    async def _answer(self, number: int, timeout_s: float, op: str) -> Any:
        future = self._waiting[number]
        try:
            done, _ = await asyncio.wait([future], timeout=timeout_s)
            if not done:
                raise RayError(f"Ray gave no answer to {op!r} in {timeout_s:g} s")
            return future.result()
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for raw in self._process.stdout:
                with contextlib.suppress(ValueError):
                    answer = json.loads(raw)
                    future = self._waiting.get(answer["id"])
                    if future is None or future.done():
                        continue
                    if answer["ok"]:
                        future.set_result(answer["result"])
                    else:
                        future.set_exception(RayError(answer["error"]))
        finally:
            self._fail("the Ray driver ended")

    def _fail(self, reason: str) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RayError(reason))
                future.exception()  # seen: nobody need wait for it


def driver_environ(environ: Mapping[str, str], hosts: list[str]) -> dict[str, str]:
    """A driver's environment: no web proxy between it and the cell's own hosts."""
    env = dict(environ)
    known = [part for part in env.get("no_proxy", env.get("NO_PROXY", "")).split(",") if part]
    env["no_proxy"] = env["NO_PROXY"] = ",".join(dict.fromkeys([*known, *hosts]))
    return env
