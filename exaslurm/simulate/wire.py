"""Lines of JSON between the processes of a simulation."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

LIMIT_BYTES = 1 << 22


def ask(path: Path, question: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Ask the process that listens on a socket, and wait. OSError if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(str(path))
        with sock.makefile("rwb") as stream:
            stream.write(json.dumps(question).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise OSError(f"{path}: no answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def say(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """One line."""
    writer.write(json.dumps(message).encode() + b"\n")


async def hear(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next line; None at the end."""
    line = await reader.readline()
    return json.loads(line) if line else None
