"""Which Debian mirror this machine uses, read from its own apt sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

APT_DIR = Path("/etc/apt")
FALLBACK = "http://deb.debian.org/debian"
# Suites of Debian's main archive; those of its security archive carry another suffix.
DEBIAN_SUITE = re.compile(r"(buster|bullseye|bookworm|trixie|forky|sid|stable|testing|unstable)/?$")


@dataclass(frozen=True)
class Source:
    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_one_line(text: str) -> Iterator[Source]:
    """Sources of the one-line format, `deb [options] URI SUITE COMPONENT...`."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line.partition("#")[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1], (words[2],), tuple(words[3:]))


def parse_stanzas(text: str) -> Iterator[Source]:
    """Sources of the deb822 format (files named *.sources)."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, list[str]] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields.setdefault(key, []).extend(line.split())
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.split()
        if "deb" not in fields.get("types", []) or "no" in fields.get("enabled", []):
            continue
        for uri in fields.get("uris", []):
            yield Source(uri, tuple(fields.get("suites", [])), tuple(fields.get("components", [])))


def read_sources(apt_dir: Path = APT_DIR) -> list[Source]:
    found: list[Source] = []
    parts = apt_dir / "sources.list.d"
    for path in [apt_dir / "sources.list", *sorted(parts.glob("*.list"))]:
        if path.is_file():
            found += parse_one_line(path.read_text())
    for path in sorted(parts.glob("*.sources")):
        found += parse_stanzas(path.read_text())
    return found


def debian_mirror(sources: list[Source]) -> str:
    """Address of the mirror of Debian's main archive, without a slash at its end."""
    for source in sources:
        if "main" in source.components and any(map(DEBIAN_SUITE.match, source.suites)):
            return source.uri.rstrip("/")
    return FALLBACK
