"""The audit log: who asked what of which model and replica, and what became of it.

A request costs the event loop one tuple. A thread makes records of the tuples, chains them (see
``audit_chain``) and writes them. When the disk hangs or is full, memory stays bounded: what
exceeds it is counted, and the chain says how much is missing and where. Nothing of prompts or
answers is ever recorded, nor any key.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from exaslurm.errors import StateError
from exaslurm.keys.clients import KeyInfo
from exaslurm.router.audit_chain import Sealer, derive_key
from exaslurm.router.audit_writer import ChainWriter
from exaslurm.router.call import Call
from exaslurm.router.exposition import Family
from exaslurm.util.iothread import IoThread

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_PENDING = 50_000  # about 25 MiB
MAX_FILE_BYTES = 128 * 1024 * 1024
FLUSH_S = 0.5
# The thread works in slices that are short beside a request's time, and lets the event loop in
# between them.
_SLICE = 64
_PAUSE_S = 0.0002
_WRITE_AT_BYTES = 512 * 1024

_Pending = tuple[
    float, float, float | None, bytes, KeyInfo, str, str, str, str, int, bool,
    int | None, int | None, int, int, int, bool, str,
]  # fmt: skip


class Audit:
    """The audit log of one router process, in ``directory``, chained with a key that is derived
    from ``secret``. ``start`` it in the process that uses it, and ``close`` it at the end.

    Above ``max_total_bytes`` in the directory the oldest files go. ``files``: the thread that
    touches the disk (None: its own).
    """

    def __init__(
        self,
        directory: Path,
        *,
        secret: str | None,
        host: str | None = None,
        max_pending: int = MAX_PENDING,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_total_bytes: int | None = None,
        flush_s: float = FLUSH_S,
        files: IoThread | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._files = files
        if max_total_bytes is not None:  # what is removed is a whole file
            max_file_bytes = min(max_file_bytes, max_total_bytes // 16)
        self._writer = ChainWriter(
            directory,
            Sealer(derive_key(secret)),
            host=socket.gethostname().partition(".")[0] if host is None else host,
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
            clock=clock,
        )
        self._clock = clock
        self._flush_s = flush_s
        self._max_pending = max_pending
        self._pending: deque[_Pending | dict[str, Any]] = deque()
        self._dropped = 0  # changed by the event loop only; the next two by the thread only
        self._spoilt = 0
        self._told = 0
        self._recorded = 0
        self._missing = 0
        self._trouble: str | None = None
        self._ending = threading.Event()
        self._serialiser = threading.Thread(target=self._work, name="audit", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._serialiser.start()

    def record(self, call: Call) -> None:
        """Keep a request that is over. Never blocks."""
        if len(self._pending) >= self._max_pending:
            self._dropped += 1
            return
        self._pending.append(
            (
                call.started_s,
                call.ended_s,
                call.first_byte_s,
                call.ident,
                call.key,
                call.route,
                call.model,
                call.version,
                call.replica,
                call.status,
                call.stream,
                call.prompt_tokens,
                call.completion_tokens,
                call.bytes_in,
                call.bytes_out,
                call.retries,
                call.broken,
                call.cause,
            )
        )

    def granted(self, key: KeyInfo, *, model: str, replica: str, expires_at_s: float) -> None:
        """Keep that a client may send requests to a replica itself until then (Unix seconds)."""
        if len(self._pending) >= self._max_pending:
            self._dropped += 1
            return
        self._pending.append(
            {
                "seq": 0,
                "kind": "grant",
                "time_ms": int(self._clock() * 1000),
                "key": key.name,
                "model": model,
                "replica": replica,
                "expires_ms": int(expires_at_s * 1000),
            }
        )

    def close(self, *, timeout_s: float = 5.0) -> int:
        """Write what is left and end the chain. Returns how many requests will be missing in it:
        0 unless the disk takes no more, or does not answer within ``timeout_s``."""
        self._ending.set()
        self._serialiser.join(timeout_s)
        if self._serialiser.is_alive():
            self._missing = self._untold() + self._writer.at_stake
        if self._missing:
            log.error(
                "%d requests are missing in the audit log in %s", self._missing, self._directory
            )
        return self._missing

    @property
    def lost(self) -> int:
        """Requests that could not be kept so far."""
        return self._dropped + self._spoilt + self._missing

    def families(self) -> list[Family]:
        """Figures for ``Metrics.watch``."""
        pending = len(self._pending)
        return [
            Family(
                "exaslurm_router_audit_records_total",
                "counter",
                "Requests that the audit log's thread has taken over",
                samples=[((), (self._recorded,))],
            ),
            Family(
                "exaslurm_router_audit_lost_total",
                "counter",
                "Requests that the audit log lacks because the disk did not keep up",
                samples=[((), (self.lost,))],
            ),
            Family(
                "exaslurm_router_audit_pending",
                "gauge",
                "Requests that wait to be written to the audit log",
                samples=[((), (pending,))],
            ),
        ]

    def _work(self) -> None:
        self._write_out()
        while not self._ending.wait(self._flush_s):
            self._write_out()
        self._write_out()
        self._missing = self._on_files(lambda: self._writer.close(self._untold()))

    def _on_files(self, call: Callable[[], T]) -> T:
        """The call made by the thread that may hang."""
        return call() if self._files is None else self._files.wait(call)

    def _write_out(self) -> None:
        if not self._untold() and self._writer.is_settled:
            return
        try:
            self._on_files(self._drain)
        except (OSError, StateError) as error:
            if self._trouble is None:
                log.error("the audit log in %s cannot be written: %s", self._directory, error)
            self._trouble = str(error)
        except Exception:
            log.exception("the audit log's writer failed")
            self._trouble = "a bug"
        else:
            if self._trouble is not None:
                log.warning("the audit log in %s is written again", self._directory)
            self._trouble = None

    def _untold(self) -> int:
        """Requests that the chain neither holds nor says to be missing."""
        return len(self._pending) + self._dropped + self._spoilt - self._told

    def _drain(self) -> None:
        """Bring to disk what was there when this began."""
        writer, pending = self._writer, self._pending
        writer.ready()
        count = len(pending)
        while count:
            offset_s = self._clock() - time.monotonic()
            part = min(count, _SLICE)
            try:
                for _ in range(part):
                    item = pending.popleft()
                    writer.append(_record(item, offset_s) if isinstance(item, tuple) else item)
                    self._recorded += 1
            except BaseException:
                self._spoilt += 1
                raise
            count -= part
            if writer.buffered_bytes >= _WRITE_AT_BYTES:
                writer.ready()
            time.sleep(_PAUSE_S)
        missing = self._dropped + self._spoilt
        if missing != self._told:
            writer.gap(missing - self._told)
            self._told = missing
        writer.flush()


def _record(pending: _Pending, offset_s: float) -> dict[str, Any]:
    """``offset_s`` makes Unix time of monotonic time."""
    (
        started_s, ended_s, first_byte_s, ident, key, route, model, version, replica, status,
        stream, prompt_tokens, completion_tokens, bytes_in, bytes_out, retries, broken, cause,
    ) = pending  # fmt: skip
    return {
        "seq": 0,
        "kind": "request",
        "time_ms": int((started_s + offset_s) * 1000),
        "id": ident.decode("latin-1"),
        "key": key.name or None,
        "route": route,
        "model": model,
        "version": version,
        "replica": replica,
        "status": status,
        "stream": stream,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        # To the microsecond; round() would take as long as the code of the chain.
        "duration_ms": int((ended_s - started_s) * 1e6) / 1000,
        "ttft_ms": None if first_byte_s is None else int((first_byte_s - started_s) * 1e6) / 1000,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "retries": retries,
        "broken": broken,
        "cause": cause,
    }
