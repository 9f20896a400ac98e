"""Whole or not at all, and private."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.util import files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True, params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def _umask(request: pytest.FixtureRequest) -> object:
    old = os.umask(request.param)
    yield
    os.umask(old)


def test_written_files_are_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, "old")
    files.write_atomic(path, b"new")
    assert files.read_text(path) == "new"
    assert mode(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, "old")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"cannot write .*/a: No space left on device") as raised:
        files.write_atomic(path, "new")
    assert raised.value.remedy is not None
    assert "EXASLURM_HOME" in raised.value.remedy
    assert files.read_text(path) == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: files.create_once(path, str(n)), range(32)))
    assert won.count(True) == 1
    assert files.read_text(path) == str(won.index(True))
    assert mode(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_directories_are_private_also_those_that_were_not(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o755)
    files.make_private_dir(loose)
    files.make_private_dir(tmp_path / "new" / "below")
    assert mode(loose) == 0o700
    assert mode(tmp_path / "new" / "below") == 0o700


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.append_line(path, "one")
    files.append_line(path, "two\n")
    assert files.read_text(path) == "one\ntwo\n"
    assert mode(path) == 0o600


def test_a_line_that_was_cut_off_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.jsonl"
    files.append_line(path, "one")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, raw: write(fd, raw[:2]))
        with pytest.raises(StateError, match="No space left"):
            files.append_line(path, "two")
    files.append_line(path, "three")
    assert files.read_text(path).splitlines() == ["one", "tw", "three"]


def test_errors_name_the_path(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "file"
    for action in (
        lambda: files.read_text(missing),
        lambda: files.write_atomic(missing, ""),
        lambda: files.create_once(missing, ""),
        lambda: files.append_line(missing, ""),
    ):
        with pytest.raises(StateError, match=str(missing)):
            action()
    (tmp_path / "plain").write_text("")
    with pytest.raises(StateError, match="cannot make directory"):
        files.make_private_dir(tmp_path / "plain" / "dir")


def test_a_pipe_or_a_directory_in_place_of_a_file_costs_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StateError, match="no regular file"):
            files.read_text(pipe)  # it must not wait for somebody who writes
        with pytest.raises(StateError, match="directory"):
            files.read_text(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_is_read_but_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with files.open_at_once(pipe) as file:
        assert file.read() == b""
    reading, writing = os.pipe()
    with files.open_at_once(Path(f"/dev/fd/{reading}")) as file:
        os.write(writing, b"there")
        os.close(writing)
        assert file.read() == b"there"
    os.close(reading)
