"""Logs of engines on their way to the shared file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exaslurm.agent.logs import EngineLogs
from exaslurm.util.iothread import IoThread


def logs(tmp_path: Path) -> EngineLogs:
    (tmp_path / "shared").mkdir(exist_ok=True)
    return EngineLogs(tmp_path / "node", tmp_path / "shared", IoThread())


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_what_is_written_arrives_once(tmp_path: Path) -> None:
    found, shared = logs(tmp_path), tmp_path / "shared" / "r0.log"
    write(shared, "of an earlier node\n")
    shared.chmod(0o600)
    write(found.local("r0"), "one\n")
    await found.copy()
    assert shared.read_text() == "of an earlier node\none\n"
    write(found.local("r0"), "two\n")
    # The next agent goes on where this one was.
    found = logs(tmp_path)
    await found.copy()
    await found.copy()
    assert shared.read_text() == "of an earlier node\none\ntwo\n"
    write(found.local("r1"), "one\n")
    await found.copy()
    assert (tmp_path / "shared" / "r1.log").stat().st_mode & 0o077 == 0


async def test_a_file_system_that_is_away_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, shared = logs(tmp_path), tmp_path / "shared"
    write(found.local("r0"), "one\n")
    write(found.local("r1"), "one\n")
    shared.rename(tmp_path / "away")
    await found.copy()
    await found.copy()
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once
    (tmp_path / "away").rename(shared)
    await found.copy()
    assert (shared / "r0.log").read_text() == (shared / "r1.log").read_text() == "one\n"


async def test_room_of_what_is_copied_is_given_back(tmp_path: Path) -> None:
    found = logs(tmp_path)
    line = "x" * 1023 + "\n"
    write(found.local("r0"), line * 8192)
    local = found.local("r0")
    before = local.stat().st_blocks
    await found.copy()
    assert (tmp_path / "shared" / "r0.log").stat().st_size == 8 << 20
    assert local.stat().st_size == 8 << 20
    if os.statvfs(tmp_path).f_bfree:  # not every file system can
        assert local.stat().st_blocks <= before
    with local.open("rb") as file:
        file.seek(-1024, os.SEEK_END)
        assert file.read().decode() == line
