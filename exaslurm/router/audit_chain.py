"""The form of the audit log on disk: records in a chain, its files, and the head that ends it.

A record is one line of JSON whose last field, ``mac``, is HMAC-SHA256 over the ``mac`` of the line
before, as it stands there, and the rest of this one. A chain goes on over its files and over
restarts of its writer; its head file names the last record, so that a cut at the end shows, too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

GENESIS = b"0" * 64
_HEAD_SCHEMA = "exaslurm/audit-head/1"
# One write of a fixed size replaces the whole head, and needs no new block on a full disk.
_HEAD_BYTES = 1024
_TAIL = re.compile(rb',"mac":"([0-9a-f]{64})"}\n')
_TAIL_BYTES = 75
_FILE = re.compile(r"(?P<chain>.+)\.(?P<seq>\d{12,})\.\d{8}-\d{6}-\d{3}\.jsonl")


def derive_key(secret: str | None) -> bytes:
    """The key of the chain: the deployment's secret itself never meets a record. Without a secret
    the chain only shows changes by those who do not compute it anew."""
    if secret is None:
        return b""
    return hmac.digest(secret.encode(), b"exaslurm audit log 1", "sha256")


class Sealer:
    """Makes and checks the codes of one key. Copies two prepared hashes, which takes half as long
    as ``hmac.digest``."""

    def __init__(self, key: bytes) -> None:
        padded = key.ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))
        self.key_id = self.mac(b"key", b"id").decode()[:16] if key else "none"

    def mac(self, previous: bytes, body: bytes) -> bytes:
        """64 hex digits."""
        inner = self._inner.copy()
        inner.update(previous + body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest().encode()

    def seal(self, previous: bytes, record: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """The line of a record, and its code."""
        try:
            body = orjson.dumps(record)
        except TypeError:  # text that is not Unicode, or a number of more than 64 bits
            body = orjson.dumps({name: _plain(value) for name, value in record.items()})
        mac = self.mac(previous, body)
        return b'%b,"mac":"%b"}\n' % (body[:-1], mac), mac


def unseal(line: bytes) -> tuple[bytes, bytes] | None:
    """What was sealed, and its code, not checked; None if it is no sealed line."""
    tail = _TAIL.fullmatch(line, max(0, len(line) - _TAIL_BYTES))
    if tail is None:
        return None
    return line[: tail.start()] + b"}", tail[1]


def record_of(body: bytes) -> dict[str, Any] | None:
    """The record in a line, with a whole ``seq``; None if it is none."""
    try:
        record = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(record, dict) or type(record.get("seq")) is not int:
        return None
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last record that is safely on disk: in ``file``, ending at byte ``offset``. ``lost``
    requests after it could not be recorded, and the chain does not say so yet."""

    chain: str
    seq: int
    mac: bytes
    file: str
    offset: int
    lost: int = 0

    def encode(self, sealer: Sealer) -> bytes:
        fields = {
            "schema": _HEAD_SCHEMA,
            "chain": self.chain,
            "seq": self.seq,
            "last": self.mac.decode(),
            "file": self.file,
            "offset": self.offset,
            "lost": self.lost,
        }
        line, _ = sealer.seal(b"head", fields)
        return line.ljust(_HEAD_BYTES, b" ")

    @classmethod
    def decode(cls, raw: bytes, chain: str, sealer: Sealer) -> Head | None:
        """The head of ``chain``; None if it is damaged, edited or that of another chain."""
        parts = unseal(raw.rstrip(b" "))
        if parts is None or not hmac.compare_digest(sealer.mac(b"head", parts[0]), parts[1]):
            return None
        found = orjson.loads(parts[0])
        if found["schema"] != _HEAD_SCHEMA or found["chain"] != chain:
            return None
        mac = found["last"].encode()
        seq, file, offset, lost = (found[name] for name in ("seq", "file", "offset", "lost"))
        return cls(chain=chain, seq=seq, mac=mac, file=file, offset=offset, lost=lost)


def read_head(fd: int) -> bytes:
    """The raw head in an open file; empty if nobody has written one."""
    return os.pread(fd, _HEAD_BYTES, 0)


@dataclass(slots=True)
class ChainFiles:
    """What one chain has on disk: its files in order, and whether there is a head."""

    files: list[Path] = field(default_factory=list)
    head: Path | None = None


def chains(directory: Path) -> dict[str, ChainFiles]:
    """Every chain in a directory, by name. OSError if it cannot be read. What is no file is not of
    the log: whoever opened a pipe would wait for ever."""
    found: dict[str, ChainFiles] = {}
    for path in sorted(directory.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is not None:
            if path.is_file():
                found.setdefault(match["chain"], ChainFiles()).files.append(path)
        elif path.suffix == ".head" and path.is_file():
            found.setdefault(path.stem, ChainFiles()).head = path
    for chain in found.values():
        chain.files.sort(key=lambda path: (first_seq(path), path.name))
    return found


def first_seq(path: Path) -> int:
    """Number of the first record in a file, by its name."""
    match = _FILE.fullmatch(path.name)
    assert match is not None
    return int(match["seq"])


def opened_at(path: Path) -> str:
    """When a file was begun, by its name: ``YYYYMMDD-hhmmss-mmm``, UTC."""
    return path.name.split(".")[-2]


def head_path(directory: Path, chain: str) -> Path:
    return directory / f"{chain}.head"


def file_path(directory: Path, chain: str, seq: int, now_s: float) -> Path:
    """The file whose first record is ``seq``. Its time (UTC) is for people, and keeps the file of
    a writer that died before its first record apart from the next one."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    return directory / f"{chain}.{seq:012}.{stamp}-{int(now_s * 1000) % 1000:03}.jsonl"


def _plain(value: Any) -> Any:
    try:
        orjson.dumps(value)
    except TypeError:
        return ascii(value)
    return value
