"""A list of engines in a file, for a router without a deployment.

The simple form is one address a line, and is read without any package, since thousands of engines
shall not delay a router's start. The full form is YAML (``engines_yaml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from exaslurm.errors import UserError
from exaslurm.registry.changes import Looks, look
from exaslurm.util.files import open_at_once

# Thousands of engines in the full form; more is some other file.
_MAX_BYTES = 8 * 1024 * 1024
# Linux: sun_path holds 108 bytes with the final NUL.
_MAX_SOCKET_PATH_BYTES = 107

_HTTP = re.compile(
    r"http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):(\d+)/?"
)
_UNIX = re.compile(r"unix:(?://)?(/[^\s#?%]+)")
_YAML = re.compile(r"---|[{\[%&]|- |[\"']?\w+[\"']?\s*:(?:\s|$)")
_FORMS = "http://HOST:PORT or unix:/PATH/TO/SOCKET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of the list.

    ``url`` is ``http://host:port`` or ``unix:/path``; ``served_names`` is empty where the engine
    is to be asked. ``node`` and ``switch`` are its failure domains, ``version`` that of its model.
    ``key`` is what the engine wants to be shown (None: nothing).
    """

    url: str
    id: str
    node: str
    served_names: tuple[str, ...] = ()
    switch: str = ""
    version: str = ""
    weight: float = 1.0
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesFile:
    """The engines of a file (None: given otherwise), in its order; ids and addresses are unique.
    ``key_files``: which other files it has its keys from; ``looks``: how all of these looked before
    they were read."""

    path: Path | None
    engines: tuple[Engine, ...]
    key_files: tuple[Path, ...] = ()
    looks: Looks = field(default_factory=dict, compare=False, repr=False)


class UnusableKeys(UserError):
    """A list that would be well but for some of its ``key_files``."""

    def __init__(self, message: str, key_files: tuple[Path, ...]) -> None:
        super().__init__(message)
        self.key_files = key_files


def load(path: Path) -> EnginesFile:
    """Read a file of engines, in either form.

    UserError (``file:line: what is wrong``, every problem of the file at once) if it cannot be
    used; StateError for a key file that is missing or can be read by others.
    """
    looks = {path: look(path)}
    text = _read(path)
    if not _is_plain(path, text):
        # The YAML parser and pydantic take longer to import than a router may take to start.
        from exaslurm.registry import engines_yaml

        found = engines_yaml.parse(path, text)
        return replace(found, looks=looks | found.looks)
    return EnginesFile(path=path, engines=_parse_lines(path, text), looks=looks)


def of_urls(urls: Iterable[str]) -> EnginesFile:
    """The same from addresses that were given otherwise; UserError names a wrong one."""
    return EnginesFile(path=None, engines=_parse_lines(None, "\n".join(urls)))


def parse_url(text: str) -> tuple[str, str, str]:
    """``(url, id, node)`` of an engine's address: the address in its normal form and the default
    names. ValueError says what is wrong with it."""
    match = _HTTP.fullmatch(text)
    if match:
        host, port = match.groups()
        if not 1 <= int(port) <= 65535:
            raise ValueError(f"no such port (got {text!r})")
        host = host.lower()
        name = f"{host}:{int(port)}"
        return f"http://{name}", name, host.strip("[]")
    match = _UNIX.fullmatch(text)
    if match:
        socket = match.group(1)
        if len(socket.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"longer than the {_MAX_SOCKET_PATH_BYTES} bytes of a socket's path")
        return f"unix:{socket}", socket, "localhost"
    if text.startswith("https://"):
        raise ValueError(
            f"engines are reached over plain HTTP, use http://HOST:PORT (got {text!r})"
        )
    raise ValueError(f"not an engine's address, use {_FORMS} (got {text[:80]!r})")


def _read(path: Path) -> str:
    try:
        with open_at_once(path) as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) > _MAX_BYTES:
        raise UserError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, which no such file is")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 text (byte {error.start})") from None


def _is_plain(path: Path, text: str) -> bool:
    """Whether the first line that says anything is no beginning of a YAML document."""
    for line in text.splitlines():
        said = line.partition("#")[0].strip()
        if said:
            return _YAML.match(said) is None
    raise UserError(f"{path}: no engine in it", remedy=f"write one address a line: {_FORMS}")


def _parse_lines(path: Path | None, text: str) -> tuple[Engine, ...]:
    engines: list[Engine] = []
    problems: list[str] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        try:
            url, ident, node = parse_url(said)
            first = lines.setdefault(url, number)
            if first != number:
                raise ValueError(f"{url} is already given in line {first}")
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}" if path else str(error))
            continue
        engines.append(Engine(url=url, id=ident, node=node))
    if problems:
        raise UserError("\n".join(problems))
    return tuple(engines)
