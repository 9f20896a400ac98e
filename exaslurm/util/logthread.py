"""Logging that cannot block: lines are written by a thread of their own.

A log on a shared file system hangs when the file system does; the process that writes it must
not. Where the process has a thread for its files, that one writes the log too (``write_on``), so
that no second thread hangs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
import threading
from collections import deque
from typing import TextIO

from exaslurm.util.iothread import IoThread

_DATE = "%Y-%m-%dT%H:%M:%S"
# While nothing can be written, the oldest lines go.
_MOST_LINES = 20_000
_DEAD = (errno.ENOTCONN, errno.ESTALE, errno.EIO)

_active: LogThread | None = None


class LogThread:
    """Everything that is logged goes to stderr through a thread. ``form``: of a line, as of
    ``logging.Formatter``; each begins with the time and ``name`` if it is not given."""

    def __init__(self, name: str, *, level: int = logging.INFO, form: str | None = None) -> None:
        self._lines: deque[logging.LogRecord] = deque(maxlen=_MOST_LINES)
        self._lock = threading.Lock()
        self._asked = False
        self._files = IoThread("log")
        self._stream = _Stream(sys.stderr)
        if form is None:
            formatter = logging.Formatter(f"%(asctime)s {name}: %(message)s", _DATE)
        else:
            formatter = logging.Formatter(form)
        self._stream.setFormatter(formatter)
        logging.basicConfig(level=level, handlers=[_Entry(self)])
        # As the handlers of ``logging``, it is the process's.
        global _active
        _active = self

    def write_on(self, files: IoThread) -> None:
        """Write on this thread from now on."""
        before, self._files = self._files, files
        before.close()
        files.post(self._write)

    def add(self, record: logging.LogRecord) -> None:
        """Have a record written; at once where the caller is the thread that writes."""
        if self._files.is_here:
            self._write()
            self._stream.handle(record)
            return
        with self._lock:
            self._lines.append(record)
            asked, self._asked = self._asked, True
        if not asked:
            self._files.post(self._write)

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Give the thread a moment to write what there is. Leave with ``os._exit`` then: at a
        normal exit ``logging`` waits for a stream that hangs."""
        written = threading.Event()
        self._files.post(self._write)
        self._files.post(written.set)
        written.wait(timeout_s)

    def _write(self) -> None:
        with self._lock:
            self._asked = False
        while self._lines:
            self._stream.handle(self._lines.popleft())


class _Stream(logging.StreamHandler[TextIO]):
    """Writes to stderr. Where that is a file whose file system went and came back, the open file is
    dead for good: then it is opened again."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._path: str | None = None
        with contextlib.suppress(OSError):
            path = os.readlink("/proc/self/fd/2")
            if stat.S_ISREG(os.fstat(2).st_mode) and os.path.isabs(path):
                self._path = path

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as in logging
        error = sys.exc_info()[1]
        if not isinstance(error, OSError) or error.errno not in _DEAD or self._path is None:
            super().handleError(record)
            return
        with contextlib.suppress(OSError):  # away still: this line is lost
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.dup2(fd, 2)
            os.close(fd)
            os.write(2, f"{self.format(record)}\n".encode(errors="replace"))


class _Entry(logging.Handler):
    """Hands records to the thread, their text made: what they speak of may change."""

    def __init__(self, lines: LogThread) -> None:
        super().__init__()
        self._to = lines

    def createLock(self) -> None:  # noqa: N802 - as in logging
        """None: whoever writes would hold it while the file system hangs."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            record.message = record.getMessage()
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.msg, record.args, record.exc_info = record.message, None, None
            self._to.add(record)
        except Exception:
            self.handleError(record)


def write_on(files: IoThread) -> None:
    """Have this process's log, if it goes through a thread, written by that of its files."""
    if _active is not None:
        _active.write_on(files)
