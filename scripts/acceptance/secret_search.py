"""Looks for secrets on one host; runs there, by itself, as the user whose eyes are to be used.

stdin: {"secrets": {name: text}, "roots": [directory...], "skip": [directory...], "since_s": T,
        "serve": bool}
stdout: {"hits": [{"secret", "form", "where", "mode", "kind"}...], "files": N, "mib": N,
         "processes": N, "environments": N, "answers": N}

Searched are every file below ``roots`` that changed since ``since_s`` (a secret is in no file that
was last changed before it was made), the argument list and the environment of every process, and,
with ``serve``, what the host's listening ports answer to somebody without a key. What cannot be
read is what this user cannot read. ``environments`` counts those of other users that opened.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from typing import Any

CHUNK = 1 << 20
PATHS = ("/", "/metrics", "/v1/state", "/v1/report", "/v1/models", "/logs", "/api/jobs/", "/nodes")
ANSWER_S = 2.0
FIRST_USER = 1000  # below are the system's own, such as Slurm's, which take HTTP amiss


def forms(text: str) -> dict[str, bytes]:
    """The ways in which a secret may be written down: as it is, in hexadecimal, in Base64."""
    if len(text) < 8:
        raise ValueError("a secret this short would be found everywhere")
    raw = text.encode()
    found = {"plain": raw, "hex": raw.hex().encode()}
    for lead in range(3):
        # What stands around it changes the first and the last characters, so these are left out.
        coded = base64.b64encode(b"\0" * lead + raw)
        found[f"base64+{lead}"] = coded[4 if lead else 0 : len(coded) - 4]
    return found


class Search:
    """Everything that was found so far."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self.patterns = [
            (name, form, pattern)
            for name, text in secrets.items()
            for form, pattern in forms(text).items()
        ]
        self.overlap = max((len(pattern) for _, _, pattern in self.patterns), default=1) - 1
        self.hits: list[dict[str, str]] = []
        self.counts = {"files": 0, "bytes": 0, "processes": 0, "environments": 0, "answers": 0}

    def look(self, data: bytes, where: str, kind: str, mode: str = "") -> None:
        for name, form, pattern in self.patterns:
            hit = {"secret": name, "form": form, "where": where, "mode": mode, "kind": kind}
            if pattern in data and hit not in self.hits:
                self.hits.append(hit)

    def file(self, path: str, kind: str = "file") -> bool:
        """Search one file; whether it could be opened."""
        try:
            # A FIFO or a device would block, or do something: only regular files are opened.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(fd, "rb") as file, contextlib.suppress(OSError):
            mode = f"{stat.S_IMODE(os.fstat(fd).st_mode):04o}"
            kept = b""
            while chunk := file.read(CHUNK):
                self.counts["bytes"] += len(chunk)
                self.look(kept + chunk, path, kind, mode)
                kept = (kept + chunk)[-self.overlap :]
        return True

    def tree(self, root: str, skip: set[str], since_s: float) -> None:
        todo = [root]
        while todo:
            try:
                entries = list(os.scandir(todo.pop()))
            except OSError:
                continue
            for entry in entries:
                self.look(entry.path.encode(errors="replace"), entry.path, "name")
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISLNK(info.st_mode):
                    with contextlib.suppress(OSError):
                        self.look(os.fsencode(os.readlink(entry.path)), entry.path, "name")
                elif stat.S_ISDIR(info.st_mode):
                    if entry.path not in skip:
                        todo.append(entry.path)
                elif stat.S_ISREG(info.st_mode) and info.st_ctime >= since_s:
                    self.counts["files"] += self.file(entry.path)

    def processes(self) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            self.counts["processes"] += self.file(f"/proc/{pid}/cmdline", "argv")
            with contextlib.suppress(OSError):
                others = os.stat(f"/proc/{pid}").st_uid != os.getuid()
                opened = self.file(f"/proc/{pid}/environ", "environ")
                self.counts["environments"] += opened and others

    def servers(self) -> None:
        for address, port in sorted(set(listening())):
            for path in PATHS:
                answer = get(address, port, path)
                self.counts["answers"] += bool(answer)
                self.look(answer, f"http://{address}:{port}{path}", "answer")
                if not answer.startswith(b"HTTP/"):
                    break


def listening() -> Iterator[tuple[str, int]]:
    """Addresses and ports of the TCP servers that users run on this host."""
    for table, size in (("tcp", 4), ("tcp6", 16)):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as file:
            for line in list(file)[1:]:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                if state == "0A" and int(uid) >= FIRST_USER:
                    digits, port = local.split(":")
                    raw = bytes.fromhex(digits)
                    anybody = raw == bytes(size) or size == 16
                    yield "127.0.0.1" if anybody else ".".join(map(str, raw[::-1])), int(port, 16)


def get(address: str, port: int, path: str) -> bytes:
    """What a server says to a request without any key; nothing if it says nothing in time."""
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), timeout=ANSWER_S) as connection,
    ):
        connection.sendall(request.encode())
        while len(answer) < 4 * CHUNK and (part := connection.recv(65536)):
            answer += part
    return answer


def main(order: dict[str, Any]) -> dict[str, Any]:
    search = Search(order["secrets"])
    for root in order["roots"]:
        search.tree(root, set(order["skip"]), order["since_s"])
    search.processes()
    if order["serve"]:
        search.servers()
    megabytes = round(search.counts.pop("bytes") / (1 << 20), 1)
    return {"hits": search.hits, "mib": megabytes, **search.counts}


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)
