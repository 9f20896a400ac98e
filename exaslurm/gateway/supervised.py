"""The supervisor beside a router: a process of its own, so that nothing it does costs a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

from exaslurm.rundir import RunDir

log = logging.getLogger(__name__)

_BACKOFF_S, _MOST_BACKOFF_S = 1.0, 60.0
_PROVEN_S = 300.0
_TERM_S = 5.0


async def keep_supervisor(run_dir: RunDir) -> None:
    """Have a supervisor run until the deployment is to stop, or until cancelled; then it ends. One
    that dies is started again."""
    loop = asyncio.get_running_loop()
    delay_s = _BACKOFF_S
    while True:
        begun_s = loop.time()
        try:
            code = await _run(run_dir)
        except OSError as error:
            log.error("the supervisor cannot be started: %s", error)
            code = 1
        if code == 0:
            return
        if loop.time() - begun_s > _PROVEN_S:
            delay_s = _BACKOFF_S
        log.warning("the supervisor has ended (%d); it starts again in %.0f s", code, delay_s)
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _MOST_BACKOFF_S)


async def _run(run_dir: RunDir) -> int:
    """Its exit code. It ends with this task, and by itself if this process is killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "exaslurm.supervisor"),
        *("--run-dir", os.fspath(run_dir.path), "--under-gateway"),
        stdin=asyncio.subprocess.DEVNULL,
        # Ctrl-C in a terminal is for the gateway.
        start_new_session=True,
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            end = asyncio.ensure_future(process.wait())
            done, _ = await asyncio.wait({end}, timeout=_TERM_S)
            if not done:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await end
