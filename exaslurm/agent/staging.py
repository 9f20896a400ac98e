"""Models made ready on this node, each once, by a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exaslurm.agent.first_cause import last_error
from exaslurm.core.codec import dumps
from exaslurm.core.plan import ModelPlan, Plan
from exaslurm.errors import ModelError
from exaslurm.util.waiting import within

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """A ready model directory and how long it took to get it."""

    path: str
    seconds: float


class Stager:
    """Runs ``exaslurm.models.prepare``; replicas of one model share one run."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._environ = dict(environ)
        self._cache = Path(plan.node.shared) / "exaslurm-models"
        self._running: dict[str, asyncio.Task[Staged]] = {}

    async def stage(self, model: ModelPlan) -> Staged:
        """The model's directory; raises ModelError. A failed run is not remembered."""
        if model.source.kind == "none":
            return Staged(model.source.value, 0.0)
        task = self._running.get(model.name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._prepare(model))
            self._running[model.name] = task
        # One replica that is stopped must not take the model from the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what still runs."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _prepare(self, model: ModelPlan) -> Staged:
        began = time.monotonic()
        limit_s = self._plan.timeouts.stage_s
        process = await asyncio.create_subprocess_exec(
            *(self._plan.node.python, "-m", "exaslurm.models.prepare"),
            *("--source-json", dumps(model.source), "--cache", str(self._cache)),
            *("--timeout-s", f"{limit_s:g}", "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environ,
        )
        try:
            out, err = await within(process.communicate(), limit_s)
        except asyncio.TimeoutError:
            raise ModelError(
                f"model {model.name!r}: not ready after {limit_s:g} s",
                remedy="raise timeouts.stage_s, or prepare the model on the shared file system",
            ) from None
        finally:
            await _end(process)
        text = err.decode(errors="replace")
        if process.returncode != 0:
            cause = last_error(text.splitlines()) or f"exit code {process.returncode}"
            raise ModelError(f"model {model.name!r}: {cause}")
        try:
            path = str(json.loads(out.splitlines()[-1])["path"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"model {model.name!r}: unreadable answer {out[-200:]!r}") from error
        seconds = time.monotonic() - began
        log.info("model %s is ready in %s (%.1f s)", model.name, path, seconds)
        return Staged(path, seconds)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()  # it removes its lock and half-made files
        with contextlib.suppress(asyncio.TimeoutError):
            await within(process.wait(), 5.0)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
