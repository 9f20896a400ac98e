"""Writes one chain of the audit log: the disk's side of it, for a thread that may block.

What could not be written is kept and tried again. A writer that starts goes on with the chain of
the one before it: after a crash from the last whole record, after a cut from the record that the
head names, so that what is missing stays visible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from exaslurm import __version__
from exaslurm.errors import StateError
from exaslurm.router.audit_chain import (
    GENESIS,
    ChainFiles,
    Head,
    Sealer,
    chains,
    file_path,
    first_seq,
    head_path,
    opened_at,
    read_head,
    record_of,
    unseal,
)
from exaslurm.util.files import PRIVATE_FILE, make_private_dir
from exaslurm.util.sharedfile import is_at

MAX_CHAINS = 1024
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class _Tip(NamedTuple):
    """The last record of a chain."""

    seq: int = 0
    mac: bytes = GENESIS


class ChainWriter:
    """Appends records to a chain that no other process has. All calls but the constructor may
    block, and raise OSError or StateError; after that they may be made again."""

    def __init__(
        self,
        directory: Path,
        sealer: Sealer,
        *,
        host: str,
        max_file_bytes: int,
        max_total_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._sealer = sealer
        self._host = re.sub(r"[^A-Za-z0-9_-]", "_", host) or "host"
        self._max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes
        self._clock = clock
        self._chain = ""
        self._tip = _Tip()
        self._file: _File | None = None
        self._head_fd = -1
        self._head_is_old = False
        self._buffer = bytearray()
        self._weights: deque[int] = deque()
        self._condemned: list[Path] = []
        self._unsaid = 0  # requests that are lost, which the chain has to say as soon as it can

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    @property
    def is_settled(self) -> bool:
        """Whether there is a file, and everything is in it."""
        return self._file is not None and not self._buffer and not self._head_is_old

    @property
    def at_stake(self) -> int:
        """Requests in records that are not on disk yet."""
        return sum(self._weights) + self._unsaid

    def ready(self) -> None:
        """Have a file to append to: the first one, or the next after its size or day."""
        if self._file is not None and not self._directory.parent.is_dir():
            raise StateError(f"there is no {self._directory.parent} (is its file system mounted?)")
        if self._file is not None and not self._is_in_place():
            # Somebody moved what is written to. What they have is all that there is of it.
            self._unsaid = self.at_stake
            self._buffer.clear()
            self._weights.clear()
            self._let_go()
        if self._file is None:
            self._take_chain()
            return
        if not self.is_settled:
            self.flush()
        if self._file.size_bytes >= self._max_file_bytes:
            self._next_file("size", "ok")
        elif self._file.day != _day(self._clock()):
            self._next_file("day", "ok")

    def append(self, record: dict[str, Any], weight: int = 1) -> None:
        """Add a record for ``weight`` requests to what ``flush`` will write. It has a key ``seq``
        for its number. Memory only."""
        last, previous = self._tip
        record["seq"] = seq = last + 1
        line, mac = self._sealer.seal(previous, record)
        self._tip = _Tip(seq, mac)
        self._buffer += line
        self._weights.append(weight)

    def flush(self) -> None:
        """Bring everything to disk, then the head."""
        file = self._file
        if file is None:
            return
        while self._buffer:
            written = os.write(file.fd, self._buffer)
            self._head_is_old = True
            file.size_bytes += written
            if written == len(self._buffer):
                self._weights.clear()
                self._buffer.clear()
            else:
                for _ in range(self._buffer.count(b"\n", 0, written)):
                    self._weights.popleft()
                del self._buffer[:written]
        if self._head_is_old:
            # In this order: the head must not promise what a power failure takes away.
            os.fdatasync(file.fd)
            self._write_head(
                Head(
                    chain=self._chain,
                    seq=self._tip.seq,
                    mac=self._tip.mac,
                    file=file.path.name,
                    offset=file.size_bytes,
                )
            )
            self._head_is_old = False
        while self._condemned:
            # Only now: the chain says on disk that these are gone by intent.
            self._condemned.pop().unlink(missing_ok=True)

    def close(self, lost: int) -> int:
        """End the chain, for now, with ``lost`` requests that nobody will append any more. How
        many will be missing: 0, unless the disk takes no more; then the head keeps their number
        for the next writer."""
        missing = 0
        try:
            self.ready()
            if lost:
                self.append(self._event("gap", lost=lost), lost)
                lost = 0
            self.append(self._event("close"), 0)
            self.flush()
        except (OSError, StateError):
            missing = lost + self.at_stake
            self._note_lost(missing)
        self._let_go()
        return missing

    def gap(self, lost: int) -> None:
        """Say that ``lost`` requests could not be recorded."""
        self.append(self._event("gap", lost=lost), lost)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"seq": 0, "kind": kind, "time_ms": int(self._clock() * 1000), **more}

    def _take_chain(self) -> None:
        try:
            if self._directory.parent.is_dir():  # else the deployment itself was removed
                make_private_dir(self._directory)
            self._chain, self._head_fd = self._lock_chain()
            self._unsaid += self._resume()
        except BaseException:
            self._let_go()
            raise
        if self._unsaid:
            self.gap(self._unsaid)
            self._unsaid = 0

    def _resume(self) -> int:
        """Go on where the chain ends, in a new file. Returns what the head says was lost."""
        raw = read_head(self._head_fd)
        head = Head.decode(raw, self._chain, self._sealer)
        files = chains(self._directory).get(self._chain, ChainFiles()).files
        if head is not None:
            word = "ok"
            self._tip = self._after(head, files)
        else:
            word = "damaged" if raw else "missing" if files else "new"
            self._tip = self._last_of(files)
        if word == "new":
            self._write_head(Head(chain=self._chain, seq=0, mac=GENESIS, file="", offset=0))
        self._next_file("start", word)
        return head.lost if head is not None else 0

    def _lock_chain(self) -> tuple[str, int]:
        """The first chain of this host that no other process writes, and its open head."""
        for number in range(MAX_CHAINS):
            chain = f"{self._host}-{number}"
            fd = _open_head(head_path(self._directory, chain))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno in _NO_LOCKS:
                    break
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            else:
                return chain, fd
        # No locks here: a chain of this process alone.
        chain = f"{self._host}-{os.getpid()}-{int(self._clock() * 1000)}"
        return chain, _open_head(head_path(self._directory, chain))

    def _after(self, head: Head, files: list[Path]) -> _Tip:
        """The last whole record: the head's, or one that was written after it."""
        tip = _Tip(head.seq, head.mac)
        for path in files:
            if path.name == head.file:
                tip = self._walk(path, head.offset, tip)
            elif path.name > head.file:
                tip = self._walk(path, 0, tip)
        return tip

    def _last_of(self, files: list[Path]) -> _Tip:
        """The last whole record of a chain without a head. The first one of each file says what
        it follows."""
        for path in reversed(files):
            with path.open("rb") as file:
                parts = unseal(file.readline())
            record = record_of(parts[0]) if parts else None
            previous = record.get("previous") if record else None
            if record is None or not isinstance(previous, str):
                continue
            before = _Tip(record["seq"] - 1, previous.encode())
            tip = self._walk(path, 0, before)
            if tip is not before:
                return tip
        return _Tip()

    def _walk(self, path: Path, offset: int, tip: _Tip) -> _Tip:
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                parts = unseal(line)
                if parts is None or self._sealer.mac(tip.mac, parts[0]) != parts[1]:
                    break
                tip = _Tip(tip.seq + 1, parts[1])
        return tip

    def _next_file(self, reason: str, head: str) -> None:
        others = self._others()
        condemned = self._oldest() if self._max_total_bytes is not None else {}
        now_s = self._clock()
        path = file_path(self._directory, self._chain, self._tip.seq + 1, now_s)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        opened = _File(path, os.open(path, flags, PRIVATE_FILE), _day(now_s))
        # From here on nothing can fail: a file begins with its record, whole or not at all.
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file.fd)
        self._file = opened
        self.append(
            self._event(
                "open",
                chain=self._chain,
                previous=self._tip.mac.decode(),
                reason=reason,
                head=head,
                host=self._host,
                pid=os.getpid(),
                exaslurm=__version__,
                key_id=self._sealer.key_id,
                others=others,
            ),
            0,
        )
        if condemned:
            self.append(self._event("pruned", through=condemned), 0)

    def _oldest(self) -> dict[str, int]:
        """Condemn the oldest files of all chains as far as there is too much. Returns the last
        record that goes, by chain. The last file of a chain stays."""
        assert self._max_total_bytes is not None
        total_bytes = 0
        old: list[tuple[str, str, int, Path, int]] = []
        for name, chain in chains(self._directory).items():
            for path, following in itertools.zip_longest(chain.files, chain.files[1:]):
                with contextlib.suppress(FileNotFoundError):
                    size = path.stat().st_size
                    total_bytes += size
                    if following is not None:
                        old.append((opened_at(path), name, size, path, first_seq(following) - 1))
        through: dict[str, int] = {}
        for _, name, size, path, last in sorted(old):
            if total_bytes <= self._max_total_bytes:
                break
            total_bytes -= size
            self._condemned.append(path)
            through[name] = last
        return through

    def _others(self) -> dict[str, int]:
        """How far the other chains are: a chain that vanishes is missed by those that are left."""
        found: dict[str, int] = {}
        for name, chain in chains(self._directory).items():
            if name == self._chain or chain.head is None:
                continue
            with contextlib.suppress(OSError):
                head = Head.decode(chain.head.read_bytes(), name, self._sealer)
                if head is not None and head.seq:
                    found[name] = head.seq
        return found

    def _is_in_place(self) -> bool:
        assert self._file is not None
        head = head_path(self._directory, self._chain)
        return is_at(self._file.fd, self._file.path) and is_at(self._head_fd, head)

    def _write_head(self, head: Head) -> None:
        os.pwrite(self._head_fd, head.encode(self._sealer), 0)

    def _note_lost(self, lost: int) -> None:
        with contextlib.suppress(OSError):
            raw = read_head(self._head_fd) if self._head_fd >= 0 else b""
            head = Head.decode(raw, self._chain, self._sealer)
            if head is not None and lost:
                self._write_head(dataclasses.replace(head, lost=head.lost + lost))

    def _let_go(self) -> None:
        for fd in (self._head_fd, self._file.fd if self._file else -1):
            if fd >= 0:
                with contextlib.suppress(OSError):  # it is closed all the same
                    os.close(fd)
        self._file = None
        self._head_fd = -1


@dataclass(slots=True)
class _File:
    path: Path
    fd: int
    day: int
    size_bytes: int = 0


def _open_head(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)


def _day(now_s: float) -> int:
    return int(now_s // 86400)
