"""A door out of a host: while a command runs there, it may use scripts/lab itself.

Other tools of a cluster reach nodes from a login node (ssh, pdsh); a host of the lab has no such
way. In the host appears ``/run/exaslurm-door/lab``, which takes the verbs of scripts/lab: whoever
calls it there has them carried out here, as root. It goes with the command that it was opened for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from labkit.errors import LabError
from labkit.etcdir import account_ids
from labkit.record import LabRecord

DOOR = "/run/exaslurm-door"
LAB = Path(__file__).resolve().parents[1] / "lab"
# What may go through; a lab is not taken down from within.
VERBS = ("exec", "status", "fs", "link", "kill-node", "start-node")
# After a command that was killed: for what it has broken to be mended.
LINGER_S = 20.0
_MESSAGE_BYTES = 1 << 17

CLIENT = """\
#!/usr/bin/python3 -I
import json, os, socket, sys
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    door.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    socket.send_fds(door, [json.dumps(sys.argv[1:]).encode()], [0, 1, 2])
    code = door.recv(16)
except OSError as error:
    sys.exit(f"lab: the door of this host is closed ({error.strerror}): lab exec --door opens it")
sys.exit(int(code or b"1"))
"""


class Door:
    """Open while it is used as ``with``."""

    def __init__(self, lab: LabRecord, host: str, user: str) -> None:
        self._lab = lab
        root = Path(f"/proc/{lab.door(host).pid}/root")
        self._directory = root / DOOR.lstrip("/")
        self._owner = account_ids(lab.paths.etc, user)
        self._pid = 0

    def __enter__(self) -> Door:
        self._make()
        listener = self._listen()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.setsid()  # Ctrl-C is for the command, which then mends what it has broken
                self._serve(listener, parent)
                code = 0
            finally:
                os._exit(code)
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _make(self) -> None:
        """The directory, its user's alone; a LabError if another command's door is open."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(self._directory / "socket"))
            except OSError:
                pass
            else:
                raise LabError(f"a door is open already, for another command ({DOOR})")
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        client = self._directory / "lab"
        client.write_text(CLIENT)
        client.chmod(0o755)
        os.chown(self._directory, *self._owner)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self._directory / "socket"
        listener.bind(str(path))
        path.chmod(0o600)
        os.chown(path, *self._owner)
        listener.listen(16)
        return listener

    def _serve(self, listener: socket.socket, parent: int) -> None:
        end: float | None = None
        while end is None or time.monotonic() < end:
            ready, _, _ = select.select([listener], [], [], 1.0)
            if ready:
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            if end is None and os.getppid() != parent:
                end = time.monotonic() + LINGER_S

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, uid, _ = struct.unpack("3i", raw)
            message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
            try:
                words = json.loads(message) if uid in (0, self._owner[0]) else []
                if len(fds) == 3 and words and words[0] in VERBS:
                    code = self._run(connection, words, fds)
                else:
                    os.write(fds[2], f"lab: not through this door: {words}\n".encode())
                    code = 2
            finally:
                for fd in fds:
                    os.close(fd)
            with contextlib.suppress(OSError):
                connection.send(str(code).encode())

    def _run(self, connection: socket.socket, words: list[str], fds: list[int]) -> int:
        """Run the verb until it ends, or until whoever asked for it is gone."""
        argv = [sys.executable, str(LAB), words[0], "--name", self._lab.config.name, *words[1:]]
        process = subprocess.Popen(
            argv, stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True
        )
        while True:
            try:
                code = process.wait(timeout=0.02)
            except subprocess.TimeoutExpired:
                if select.select([connection], [], [], 0)[0]:  # it is closed: nothing more comes
                    process.terminate()
                continue
            return code if code >= 0 else 128 - code
