"""A slow link: between two network namespaces, as between two hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NEAR, FAR = f"chn{os.getpid()}", f"chf{os.getpid()}"
ADDRESS = f"10.213.{1 + os.getpid() % 250}.2"
PEER = ADDRESS[:-1] + "1"
# Answers each connection with what it says, at once.
SERVER = f"""
import socket
server = socket.create_server(("{ADDRESS}", 8123))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100))
    connection.close()
"""
CLIENT = f"""
import socket, time
begin = time.monotonic()
with socket.create_connection(("{ADDRESS}", 8123), timeout=10) as connection:
    connection.sendall(b"x")
    assert connection.recv(100) == b"x"
print(time.monotonic() - begin)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def in_namespace(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def link() -> Iterator[None]:
    """A server in one namespace, and a way to it from another."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    ip("netns", "add", NEAR)
    ip("netns", "add", FAR)
    try:
        ip("link", "add", "v", "netns", NEAR, "type", "veth", "peer", "name", "v", "netns", FAR)
        for name, address in ((NEAR, PEER), (FAR, ADDRESS)):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", "v")
            ip("-n", name, "link", "set", "v", "up")
            ip("-n", name, "link", "set", "lo", "up")
        argv = ["ip", "netns", "exec", FAR, sys.executable, "-c", SERVER]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield
            server.kill()
    finally:
        ip("netns", "del", NEAR)
        ip("netns", "del", FAR)


def node(op: str, given: dict[str, Any]) -> dict[str, Any]:
    done = in_namespace(FAR, "-m", "exaslurm.chaos.node", op, json.dumps(given))
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.lab
@pytest.mark.usefixtures("link")
def test_answers_are_late_until_it_is_mended() -> None:
    given = {"address": ADDRESS, "ports": [8123], "rate_mbit": 10, "delay_ms": 400, "token": "t"}
    done = node("slow", given)["done"]
    assert done
    assert float(in_namespace(NEAR, "-c", CLIENT).stdout) >= 0.4
    node("fast", given)
    deadline = time.monotonic() + 10
    while float(in_namespace(NEAR, "-c", CLIENT).stdout) >= 0.4:
        assert time.monotonic() < deadline
    node("fast", given)
