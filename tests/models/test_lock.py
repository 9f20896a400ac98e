from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from exaslurm.core import codec
from exaslurm.errors import ModelError
from exaslurm.models import lock

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.lock"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TOUCH_S", 0.05)
    monkeypatch.setattr(lock, "STALE_S", 0.4)
    monkeypatch.setattr(lock, "_POLL_S", 0.02)


def elsewhere(**changes: object) -> str:
    owner = lock.Owner(host="nid001", boot_id="b", pid=7, start_ticks=1, token="t")
    return codec.dumps(dataclasses.replace(owner, **changes))  # type: ignore[arg-type]


def test_the_file_is_there_while_held_and_gone_after(path: Path) -> None:
    with lock.hold(path, timeout_s=5) as token:
        assert codec.loads(lock.Owner, path.read_text(), where="x").token == token
    assert not path.exists()


def test_released_on_an_error_too(path: Path) -> None:
    with pytest.raises(ValueError, match="x"), lock.hold(path, timeout_s=5):
        raise ValueError("x")
    assert not path.exists()


@pytest.mark.usefixtures("impatient")
def test_one_at_a_time(path: Path) -> None:
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with lock.hold(path, timeout_s=30):
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert most == 1
    assert list(path.parent.iterdir()) == []


@pytest.mark.usefixtures("impatient")
def test_a_touched_lock_is_waited_for_until_the_deadline(path: Path) -> None:
    with (
        lock.hold(path, timeout_s=5),
        pytest.raises(ModelError, match=f"process {os.getpid()}"),
        lock.hold(path, timeout_s=1),
    ):
        pytest.fail("held twice")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("text", [elsewhere(), "", "half a js"])
def test_a_lock_that_nobody_touches_is_broken(path: Path, text: str) -> None:
    path.write_text(text)
    started = time.monotonic()
    with lock.hold(path, timeout_s=10):
        assert time.monotonic() - started >= 0.4


def _hold_for_ever(path: Path) -> None:
    with lock.hold(path, timeout_s=5):
        time.sleep(60)


def test_the_lock_of_a_killed_process_of_this_host_is_broken_at_once(path: Path) -> None:
    process = SPAWN.Process(target=_hold_for_ever, args=(path,), daemon=True)
    process.start()
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join(timeout=10)
    started = time.monotonic()
    with lock.hold(path, timeout_s=5):
        assert time.monotonic() - started < lock.STALE_S / 10


def test_a_lock_taken_by_another_waiter_is_not_broken(path: Path) -> None:
    path.write_text(elsewhere(token="new"))
    judged = codec.loads(lock.Owner, elsewhere(token="old"), where="x")
    lock._break(path, judged)
    assert path.read_text() == elsewhere(token="new")
    assert list(path.parent.iterdir()) == [path]


def test_a_lock_that_another_owner_took_is_not_released(path: Path) -> None:
    with lock.hold(path, timeout_s=5):
        path.write_text(elsewhere())
    assert path.exists()


def test_an_owner_of_another_boot_of_this_host_is_gone() -> None:
    me = lock._myself()
    assert not me.is_gone()
    assert dataclasses.replace(me, boot_id="before").is_gone()
    assert dataclasses.replace(me, start_ticks=1).is_gone()
    assert not dataclasses.replace(me, host="other", pid=1 << 30).is_gone()
