"""What the controller wants of a node, kept for the agent that comes after this one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from exaslurm.core.cell import DesiredState
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import StateError
from exaslurm.util.files import read_text, write_atomic

log = logging.getLogger(__name__)


class Orders:
    """The newest desired state. ``apply`` is called with each that is not older than what was
    seen, ``changed`` where it is newer. ``path`` is on the node."""

    def __init__(
        self, path: Path, apply: Callable[[DesiredState], None], changed: Callable[[], None]
    ) -> None:
        self.seen_version = 0
        self._path = path
        self._apply = apply
        self._changed = changed

    def accept(self, desired: DesiredState) -> None:
        """Take what the controller wants, unless it is older than what was seen."""
        if desired.version < self.seen_version:
            log.warning("ignored version %d after %d", desired.version, self.seen_version)
            return
        if desired.version > self.seen_version:
            with contextlib.suppress(StateError):
                write_atomic(self._path, dumps(desired))
            self._changed()
        self.seen_version = desired.version
        self._apply(desired)

    def recall(self) -> None:
        """What the controller wanted of an earlier agent holds until it says otherwise."""
        with contextlib.suppress(StateError):
            desired = loads(DesiredState, read_text(self._path), where=str(self._path))
            self.seen_version = desired.version
            self._apply(desired)
