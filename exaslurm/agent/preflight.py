"""Whether the installed vLLM has the options that an engine would be started with."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.agent.first_cause import last_error
from exaslurm.engines.options import complaint, known_options
from exaslurm.engines.vllm import executable
from exaslurm.errors import PreflightFailed, StateError
from exaslurm.util.files import make_private_dir, write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.waiting import within

log = logging.getLogger(__name__)

_FILE_S = 10.0


class OptionCheck:
    """Asks ``vllm serve --help=all`` once per installed version and remembers the answer in
    ``caches`` (directories, the first that works): the question takes ten seconds of imports."""

    def __init__(
        self,
        python: str,
        environ: Mapping[str, str],
        caches: Sequence[Path],
        limit_s: float,
        files: IoThread,
    ) -> None:
        self._command = executable(python)
        self._environ = dict(environ)
        self._caches = caches
        self._limit_s = limit_s
        self._files = files
        self._task: asyncio.Task[frozenset[str]] | None = None

    def begin(self) -> None:
        """Ask in the background, so that the answer is there when the first engine starts."""
        if self._task is None or (self._task.done() and self._task.exception() is not None):
            self._task = asyncio.create_task(self._known())
            # The error is raised by ``check``; without a check nobody needs it.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def check(self, argv: Sequence[str]) -> None:
        """PreflightFailed with the nearest name if the engine does not have an option."""
        self.begin()
        assert self._task is not None
        known = await asyncio.shield(self._task)
        text = complaint(argv, known, vllm_version())
        if text is not None:
            raise PreflightFailed(text)

    async def close(self) -> None:
        """End what still runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _known(self) -> frozenset[str]:
        place = hashlib.sha256(self._command.encode()).hexdigest()[:8]
        name = f"vllm-{vllm_version()}-{place}.options.json"
        with contextlib.suppress(StateError):
            found = await self._files.run(self._read, name, timeout_s=_FILE_S)
            if found:
                return found
        known = await self._ask()
        with contextlib.suppress(StateError):
            await self._files.run(self._keep, name, known, timeout_s=_FILE_S)
        return known

    def _read(self, name: str) -> frozenset[str]:
        """The answer of an earlier time; nothing where there is none."""
        for cache in self._caches:
            with contextlib.suppress(OSError, ValueError):
                found = frozenset(json.loads((cache / name).read_text(encoding="utf-8")))
                if found:
                    return found
        return frozenset()

    def _keep(self, name: str, known: frozenset[str]) -> None:
        for cache in self._caches:
            with contextlib.suppress(StateError):
                make_private_dir(cache)
                write_atomic(cache / name, json.dumps(sorted(known)))
                return

    async def _ask(self) -> frozenset[str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *(self._command, "serve", "--help=all"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ,
            )
        except OSError as error:
            raise PreflightFailed(
                f"cannot run {self._command}: {error.strerror}",
                remedy="set `python` in the site config to the environment that has vLLM",
            ) from error
        try:
            out, err = await within(process.communicate(), self._limit_s)
        except asyncio.TimeoutError:
            raise PreflightFailed(
                f"{self._command} serve --help=all gave no answer in {self._limit_s:g} s"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        known = known_options(out.decode(errors="replace"))
        if process.returncode != 0 or "--port" not in known:
            cause = last_error(err.decode(errors="replace").splitlines())
            raise PreflightFailed(f"{self._command} does not work: {cause or 'no list of options'}")
        return known


def vllm_version() -> str:
    """Version of the vLLM that this Python has, without importing it."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
