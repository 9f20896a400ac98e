"""A spec as it is given: a file, text, or a mapping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exaslurm.errors import SpecError
from exaslurm.util.files import read_text


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The text of a spec and the name that errors call it by (a path, or ``<dict>``)."""

    path: Path
    text: str

    @classmethod
    def of(cls, spec: Path | str | Mapping[str, Any]) -> SpecSource:
        """A path, YAML text (a string with a line break or a colon and space), or a mapping."""
        if isinstance(spec, Mapping):
            import yaml

            return cls(Path("<dict>"), yaml.safe_dump(_plain(spec), sort_keys=False))
        if isinstance(spec, str) and ("\n" in spec or ": " in spec):
            return cls(Path("<text>"), spec)
        path = Path(spec)
        if not path.is_file():
            raise SpecError(
                f"no spec file {path}",
                remedy="exaslurm init > spec.yaml writes one to begin with",
            )
        return cls(path, read_text(path))

    def with_values(self, values: Mapping[str, str]) -> SpecSource:
        """The same spec with some top-level values set.

        The text is changed where the key stands, so that line numbers in errors stay true and
        the copy in the run directory is what was used.
        """
        text = self.text
        for key, value in values.items():
            # JSON strings are YAML strings; a value such as 01:00:00 must not become a number.
            line = f"{key}: {json.dumps(value)}"
            found = re.search(rf"^{re.escape(key)}[ ]*:.*$", text, re.MULTILINE)
            if found:
                text = text[: found.start()] + line + text[found.end() :]
            else:
                text = f"{text.rstrip()}\n{line}\n"
        return replace(self, text=text)


def _plain(value: Any) -> Any:
    """Paths as strings and tuples as lists, which YAML's safe writer knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
