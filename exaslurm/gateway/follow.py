"""What a router looks at in its run directory: keys, whether it shall run, whether it is listed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from exaslurm.core.submission import RouterAddress
from exaslurm.errors import ExaslurmError, StateError
from exaslurm.gateway.endpoint import publish, read_endpoint
from exaslurm.keys.clients import ClientKeys
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_TIMEOUT_S = 10.0
# A mount that comes and goes is no removed deployment.
_LOOKS_UNTIL_GONE = 5


class Watch:
    """Looks once a second, on a helper thread; calls ``stop`` with the reason for the end."""

    def __init__(
        self,
        run_dir: RunDir,
        keys: ClientKeys,
        own: RouterAddress,
        files: IoThread,
        stop: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._keys = keys
        self._own = own
        self._files = files
        self._stop = stop
        self._trouble: str | None = None
        self._missed = 0

    async def run(self) -> None:
        """Look until cancelled, or until the router shall end."""
        while True:
            trouble = None
            try:
                reason = await self._files.run(self._look, timeout_s=_TIMEOUT_S)
            except (ExaslurmError, OSError) as error:
                reason, trouble = None, str(error)
            except Exception as error:  # this loop must not end: it is how a router learns to stop
                log.exception("looking at %s", self._run_dir.path)
                reason, trouble = None, repr(error)
            if trouble and trouble != self._trouble:
                log.warning("going on with what is known: %s", trouble)
            self._trouble = trouble
            if reason is not None:
                self._stop(reason)
                return
            await asyncio.sleep(_EVERY_S)

    def _look(self) -> str | None:
        """On the helper thread. The reason to end, None to go on."""
        if not self._run_dir.path.is_dir():
            self._missed += 1
            return f"{self._run_dir.path} is gone" if self._missed >= _LOOKS_UNTIL_GONE else None
        self._missed = 0
        # None of these is kept from its work by a damaged file of another: a removed key must not
        # go on working, and a stop must be heard.
        troubles = [_trouble_of(self._read_keys), _trouble_of(self._stay_listed)]
        if not wants_run(self._run_dir):
            return "the deployment is to stop"
        for trouble in filter(None, troubles):
            raise trouble
        return None

    def _read_keys(self) -> None:
        if self._keys.refresh():
            log.info("client keys read")

    def _stay_listed(self) -> None:
        """Lost from the list (a damaged file was replaced): enter again. No file at all means
        that the directory is being removed."""
        if self._run_dir.endpoint.exists() and not self._is_listed():
            publish(self._run_dir, self._own)

    def _is_listed(self) -> bool:
        try:
            return self._own in read_endpoint(self._run_dir).routers
        except StateError:
            return False  # damaged: every living router enters itself again


def _trouble_of(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except (ExaslurmError, OSError) as error:
        return error
    return None


def wants_run(run_dir: RunDir) -> bool:
    """What ``desired.json`` says; true without one. StateError if it is damaged."""
    desired = run_dir.read_desired()
    return desired is None or desired.run
