"""What a router looks at once a second: its keys and certificate, whether it shall run, whether it
is listed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from exaslurm.core.submission import RouterAddress
from exaslurm.errors import ExaslurmError, StateError
from exaslurm.gateway.endpoint import publish, read_endpoint
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread
from exaslurm.util.presence import Presence

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_TIMEOUT_S = 10.0
_LOOKS_UNTIL_GONE = 5

Step = Callable[[], str | None]
"""One look, on the helper thread: the reason to end, None to go on."""


class Watch:
    """Takes all steps once a second, on a helper thread; calls ``stop`` with the reason for the
    end."""

    def __init__(self, steps: Sequence[Step], files: IoThread, stop: Callable[[str], None]) -> None:
        self._steps = steps
        self._files = files
        self._stop = stop
        self._trouble: str | None = None

    async def run(self) -> None:
        """Look until cancelled, or until the router shall end."""
        while True:
            trouble = None
            try:
                reason, trouble = await self._files.run(self._look, timeout_s=_TIMEOUT_S)
            except (ExaslurmError, OSError) as error:
                reason, trouble = None, str(error)
            except Exception as error:  # this loop must not end: it is how a router learns to stop
                log.exception("looking at files")
                reason, trouble = None, repr(error)
            if trouble and trouble != self._trouble:
                log.warning("going on with what is known: %s", trouble)
            self._trouble = trouble
            if reason is not None:
                self._stop(reason)
                return
            await asyncio.sleep(_EVERY_S)

    def _look(self) -> tuple[str | None, str | None]:
        """None of the steps is kept from its work by a damaged file of another: a removed key must
        not go on working, and a stop must be heard."""
        results = [_take(step) for step in self._steps]
        reason = next((reason for reason, _ in results if reason), None)
        trouble = next((trouble for _, trouble in results if trouble), None)
        return reason, trouble


def _take(step: Step) -> tuple[str | None, str | None]:
    try:
        return step(), None
    except (ExaslurmError, OSError) as error:
        return None, str(error)


class Listed:
    """Keeps the router in ``endpoint.json``. Lost from the list (a damaged file was replaced), it
    is entered again. Once it was ``entered``, no file at all means that the directory is being
    removed."""

    def __init__(self, run_dir: RunDir, own: RouterAddress) -> None:
        self._run_dir = run_dir
        self.own = own
        self.wanted = True
        self.entered = False

    def enter(self) -> None:
        """StateError if that cannot be."""
        publish(self._run_dir, self.own)
        self.entered = True

    def __call__(self) -> str | None:
        if self.wanted and (not self.entered or self._run_dir.endpoint.exists()):
            if not self._is_listed():
                self.enter()
            self.entered = True
        return None

    def _is_listed(self) -> bool:
        try:
            return self.own in read_endpoint(self._run_dir).routers
        except StateError:
            return False  # damaged: every living router enters itself again


class Wanted:
    """Whether the deployment shall run, by its directory. A file system that is away ends
    nothing."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._presence = Presence(run_dir.path)
        self._missed = 0

    def __call__(self) -> str | None:
        found = self._presence.look()
        if found == "removed":
            self._missed += 1
            return f"{self._run_dir.path} is gone" if self._missed >= _LOOKS_UNTIL_GONE else None
        self._missed = 0
        if found == "away":
            raise StateError(f"{self._run_dir.path} is away (is its file system mounted?)")
        return None if wants_run(self._run_dir) else "the deployment is to stop"


def wants_run(run_dir: RunDir) -> bool:
    """What ``desired.json`` says; true without one. StateError if it is damaged."""
    desired = run_dir.read_desired()
    return desired is None or desired.run
