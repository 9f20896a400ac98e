"""What a client program has found, for the line that runs it."""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Report:
    """Collects checks; each runs on its own, and tells what it saw."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = json.loads(sys.argv[1])
        self.key = Path(self.given["key_file"]).read_text().strip()
        self._rows: list[tuple[str, bool, str]] = []

    def check(self, what: str, work: Callable[[], object]) -> None:
        """``work`` raises (AssertionError above all) or returns what it found."""
        try:
            self._rows.append((what, True, str(work())))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
            self._rows.append((what, False, f"{text[:400]} [{where.line}]"))

    def print(self) -> None:
        print(json.dumps(self._rows))
