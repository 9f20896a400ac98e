"""The file that says how requests are divided among versions of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from exaslurm.core.canary import Canary
from exaslurm.core.codec import loads
from exaslurm.util.files import is_there, read_text

log = logging.getLogger(__name__)


class CanaryFile:
    """Tells ``divide`` what the file says, whenever it says something else. Without a file all
    versions share alike."""

    def __init__(self, path: Path, divide: Callable[[Canary], None]) -> None:
        self._path = path
        self._divide = divide
        self._text = ""

    def refresh(self) -> None:
        """Look; StateError if the file is damaged, or its directory is away: then the shares stay
        what they were."""
        text = read_text(self._path) if is_there(self._path) else ""
        if text == self._text:
            return
        canary = loads(Canary, text, where=str(self._path)) if text else Canary()
        self._text = text
        self._divide(canary)
        log.info("shares of versions: %s", dict(canary.weights) or "all alike")
