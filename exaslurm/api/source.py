"""A spec as it is given: a file, text, or a mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exaslurm.errors import SpecError


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The text of a spec and the name that errors call it by (a path, or ``<dict>``)."""

    path: Path
    text: str

    @classmethod
    def of(cls, spec: Path | str | Mapping[str, Any]) -> SpecSource:
        """A path, YAML text (a string with a line break or a colon and space), or a mapping."""
        if isinstance(spec, Mapping):
            try:
                # JSON is YAML in which no text can be taken for a number or a date.
                text = json.dumps(_plain(spec), indent=2, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise SpecError(f"the spec holds what no file could: {error}") from None
            return cls(Path("<dict>"), text + "\n")
        if isinstance(spec, str) and ("\n" in spec or ": " in spec):
            return cls(Path("<text>"), spec)
        from exaslurm.spec.load import read_spec

        path = Path(spec)
        return cls(path, read_spec(path))

    def with_values(self, values: Mapping[str, str]) -> SpecSource:
        """The same spec with some top-level values set.

        The text is changed where the key stands, so that line numbers in errors stay true and
        the copy in the run directory is what was used.
        """
        if not values:
            return self
        from exaslurm.util.yaml_edit import with_value

        text = self.text
        for key, value in values.items():
            # JSON strings are YAML strings; a value such as 01:00:00 must not become a number.
            text = with_value(text, key, json.dumps(value, ensure_ascii=False))
        return replace(self, text=text)


def _plain(value: Any) -> Any:
    """Paths as strings, and every kind of mapping and list as JSON's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
