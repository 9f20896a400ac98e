"""Figures of real processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from exaslurm.simulate import proc


def mem_mib() -> float:
    found = proc.figures(os.getpid())
    assert found is not None
    return found["mem_mib"]


def test_memory_is_what_was_written_to(tmp_path: Path) -> None:
    size = 64 * 2**20
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    before = mem_mib()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:: mmap.PAGESIZE].count(b"x") == size // mmap.PAGESIZE
        assert mem_mib() < before + 16
    held = bytearray(b"x") * size
    assert before + 56 < mem_mib() < before + 80
    del held
    assert mem_mib() < before + 16


def test_of_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = proc.figures(process.pid)
        assert found is not None
        assert found["threads"] == 1
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
        assert proc.figures(process.pid) is None
