from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exaslurm.errors import DeploymentError, StateError, TakenOver
from exaslurm.rundir import RunDir
from exaslurm.submit import lock
from exaslurm.submit.lock import deployment_lock, require_lease
from exaslurm.util import files
from exaslurm.util.files import write_atomic
from exaslurm.util.process import start_ticks


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is over soon, and nobody gives signs of life unless a test does."""
    monkeypatch.setattr(lock, "LEASE_S", 0.3)
    monkeypatch.setattr(lock, "BEAT_S", 3600.0)


def owner(run_dir: RunDir, epoch: int = 1, **more: Any) -> Path:
    """The lease in somebody's hands: by default those of another host."""
    place = run_dir.path / "lease"
    place.mkdir(exist_ok=True)
    data = {**lock._own(), "host": "elsewhere", "nonce": "0", **more}
    (place / str(epoch)).write_text(json.dumps(data))
    return place / str(epoch)


def entries(run_dir: RunDir) -> set[str]:
    return set(os.listdir(run_dir.path / "lease"))


def test_free_again_afterwards(run_dir: RunDir) -> None:
    for epoch in (1, 2, 3):
        with deployment_lock(run_dir, timeout_s=1) as lease:
            assert lease.epoch == epoch
            require_lease()
        assert entries(run_dir) == {f"{epoch}", f"{epoch}.free"}


def test_free_again_after_an_error(run_dir: RunDir) -> None:
    with pytest.raises(RuntimeError), deployment_lock(run_dir):
        raise RuntimeError
    with deployment_lock(run_dir, timeout_s=1):
        pass


def test_who_holds_it_is_named(run_dir: RunDir) -> None:
    with (
        deployment_lock(run_dir),
        pytest.raises(DeploymentError, match=f"process {os.getpid()} on {socket.gethostname()}"),
        deployment_lock(run_dir, timeout_s=0.3),
    ):
        pass


def test_one_at_a_time(run_dir: RunDir) -> None:
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with deployment_lock(run_dir, timeout_s=60):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entries(run_dir) == {"40", "40.free"}


def test_a_dead_process_of_this_host_is_not_waited_for(run_dir: RunDir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    owner(run_dir, host=socket.gethostname(), pid=int(done.stdout), start_ticks=1)
    with deployment_lock(run_dir, timeout_s=1) as lease:
        assert lease.epoch == 2


def test_a_pid_that_was_reused_is_dead(run_dir: RunDir) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    owner(run_dir, host=socket.gethostname(), start_ticks=ticks + 1)
    with deployment_lock(run_dir, timeout_s=1):
        pass


def test_a_host_that_was_booted_since_holds_nothing(run_dir: RunDir) -> None:
    owner(run_dir, host=socket.gethostname(), boot="another")
    with deployment_lock(run_dir, timeout_s=1):
        pass


@pytest.mark.parametrize("more", [{}, {"pids": "pid:[1]"}], ids=["host", "container"])
def test_whom_one_cannot_see_is_waited_for(
    run_dir: RunDir, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another host, or of another pid namespace of a host of this name."""
    host = socket.gethostname() if more else "elsewhere"
    path = owner(run_dir, host=host, pid=2**22, start_ticks=1, **more)
    with (
        pytest.raises(DeploymentError, match=f"process {2**22} on {host}"),
        deployment_lock(run_dir, timeout_s=0.3),
    ):
        pass
    monkeypatch.setattr(lock, "LEASE_S", 0.2)
    os.utime(path, (2**31, 2**31))  # its clock is years ahead: that means nothing
    begin = time.monotonic()
    with deployment_lock(run_dir, timeout_s=30):
        assert time.monotonic() - begin >= 0.2


@pytest.mark.usefixtures("soon")
def test_signs_of_life_keep_it(run_dir: RunDir) -> None:
    """However the times go: it is their change that counts."""
    path = owner(run_dir)
    over = threading.Event()

    def beat() -> None:
        step = 0
        while not over.wait(0.05):
            step += 1
            os.utime(path, (1000 - step, 1000 - step))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(DeploymentError), deployment_lock(run_dir, timeout_s=1.5):
            pass
    finally:
        over.set()
        thread.join()
    with deployment_lock(run_dir, timeout_s=30):
        pass


def test_a_holder_gives_signs_of_life(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.02)
    with deployment_lock(run_dir):
        path = run_dir.path / "lease" / "1"
        seen = set[int]()
        deadline = time.monotonic() + 30
        while len(seen) < 5 and time.monotonic() < deadline:
            seen.add(int(path.stat().st_mtime))  # whole seconds, for file systems without more
            time.sleep(0.01)
        assert len(seen) == 5


@pytest.mark.usefixtures("soon")
def test_a_holder_that_lost_it_does_nothing_more(run_dir: RunDir) -> None:
    path = run_dir.path / "desired.json"
    (run_dir.path / "sub").mkdir()
    with deployment_lock(run_dir):
        write_atomic(path, "old")
        done: list[str] = []

        def other() -> None:
            with deployment_lock(run_dir, timeout_s=30) as lease:
                write_atomic(path, "new")
                done.append(f"epoch {lease.epoch}")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert done == ["epoch 2"]
        with pytest.raises(TakenOver, match="taken over"):
            require_lease()
        for place in (path, run_dir.path / "sub" / "file"):
            with pytest.raises(TakenOver, match="taken over"):
                write_atomic(place, "late")
        # Elsewhere, and what the lease does not guard, is written as ever.
        write_atomic(run_dir.path.parent / "other", "fine")
    assert path.read_text() == "new"
    assert entries(run_dir) == {"2", "2.free"}
    require_lease()  # nobody's code


@pytest.mark.usefixtures("soon")
def test_a_file_that_is_half_made_gets_nowhere(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused right before the file is moved into its place."""
    path = run_dir.path / "desired.json"
    fsync = os.fsync

    def taken_meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    def take() -> None:
        with deployment_lock(run_dir, timeout_s=30):
            write_atomic(path, "new")

    with deployment_lock(run_dir):
        monkeypatch.setattr(os, "fsync", taken_meanwhile)
        with pytest.raises(TakenOver):
            write_atomic(path, "late")
    assert path.read_text() == "new"
    assert not [name for name in entries(run_dir) if name.startswith(".")]


def test_what_is_missing_is_no_take_over(run_dir: RunDir) -> None:
    with (
        deployment_lock(run_dir),
        pytest.raises(StateError, match="No such file") as caught,
    ):
        write_atomic(run_dir.path / "nowhere" / "file", "text")
    assert not isinstance(caught.value, TakenOver)


def test_a_late_taker_of_an_old_epoch(run_dir: RunDir) -> None:
    """Between its look and its taking, two others have had the lease, and the older's is gone."""
    place = run_dir.path / "lease"
    place.mkdir()
    for _ in range(3):
        with deployment_lock(run_dir):
            pass
    assert lock._take(place, 2) is None
    assert entries(run_dir) == {"3", "3.free"}
    assert lock._take(place, 3) is None


def test_a_lost_answer_of_the_file_server(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link was made, and its repetition fails."""
    create = files.create_once

    def twice(path: Path, text: str) -> bool:
        create(path, text)
        return create(path, text)

    monkeypatch.setattr(lock, "create_once", twice)
    with deployment_lock(run_dir, timeout_s=1) as lease:
        assert lease.epoch == 1


def test_without_room(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk nobody gets it; who has it keeps it, and gives it back."""
    link = os.link

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with deployment_lock(run_dir) as lease:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match="No space left"):
            write_atomic(run_dir.path / "desired.json", "text")
        lease.check()
        monkeypatch.setattr(os, "link", full)
    # It could not be given back: that takes room in the directory.
    monkeypatch.setattr(os, "link", link)
    assert entries(run_dir) == {"1"}
    with pytest.raises(StateError, match="No space left"):
        lock._take(run_dir.path / "lease", 2)
    assert entries(run_dir) == {"1"}


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere"), deployment_lock(RunDir(tmp_path / "nowhere")):
        pass


def test_a_directory_that_was_wiped(run_dir: RunDir) -> None:
    """Somebody tidied up: the lease is free, and who held it has lost it."""
    with deployment_lock(run_dir):
        for path in (run_dir.path / "lease").iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        with pytest.raises(TakenOver):
            require_lease()

        def other() -> None:
            with deployment_lock(run_dir, timeout_s=10):
                pass

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(TakenOver):  # of the same epoch, but not the same lease
            require_lease()
        with pytest.raises(TakenOver):
            write_atomic(run_dir.path / "desired.json", "late")


# --- several processes, each paused anywhere ----------------------------------------------------

# Takes the lease again and again. Under it, a number in a file goes up by one; each new value is
# told to the log by whoever wrote it. It may be stopped at any moment, and run on later.
WORKER = """
import os, sys, time
from pathlib import Path
from exaslurm.errors import DeploymentError, TakenOver
from exaslurm.rundir import RunDir
from exaslurm.submit import lock
from exaslurm.util.files import append_line, read_text, write_atomic
lock.LEASE_S, lock.BEAT_S = 0.4, 0.05
run_dir = RunDir(Path(sys.argv[1]))
number = run_dir.path / "number"
lost = 0
while not (run_dir.path / "end").exists():
    try:
        with lock.deployment_lock(run_dir, timeout_s=5) as lease:
            value = int(read_text(number)) + 1
            lock.require_lease()
            write_atomic(number, str(value))
            append_line(run_dir.path / "log", f"{value} {lease.epoch}")
    except DeploymentError:
        continue
    except TakenOver:
        lost += 1
print(lost)
"""


@pytest.fixture
def workers(run_dir: RunDir) -> Iterator[Callable[[int], list[subprocess.Popen[str]]]]:
    started: list[subprocess.Popen[str]] = []

    def start(count: int) -> list[subprocess.Popen[str]]:
        started.extend(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(run_dir.path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        )
        return started

    yield start
    for worker in started:
        worker.kill()
        worker.communicate()


@pytest.mark.timeout(180)
def test_paused_anywhere(
    run_dir: RunDir, workers: Callable[[int], list[subprocess.Popen[str]]]
) -> None:
    """Processes that are stopped for longer than a lease lasts, at random, never write over what
    a later holder wrote."""
    (run_dir.path / "number").write_text("0")
    chance = random.Random(5)
    crew = workers(3)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        worker = chance.choice(crew)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.0, 1.0))
        worker.send_signal(signal.SIGCONT)
        time.sleep(chance.uniform(0.0, 0.02))
    (run_dir.path / "end").touch()
    for worker in crew:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        assert int(out) >= 0
    told = [line.split() for line in (run_dir.path / "log").read_text().splitlines()]
    values = [int(value) for value, _ in told]
    # Whoever is stopped between its two lines tells it late, or never: nothing is there twice.
    assert len(values) == len(set(values)) > 10
    assert max(values) <= int((run_dir.path / "number").read_text()) <= len(values) + 30
    epochs = [int(epoch) for _, epoch in sorted(told, key=lambda pair: int(pair[0]))]
    assert epochs == sorted(epochs)
    assert len(entries(run_dir)) <= 3


# One process for each line of the lock and of what writes a file: it is stopped there, another one
# takes the lease and writes, and it goes on. The file must be the last holder's.
EVERY_LINE = """
import os, signal, sys
from pathlib import Path
from exaslurm.errors import TakenOver
from exaslurm.rundir import RunDir
from exaslurm.submit import lock
from exaslurm.util import files
from exaslurm.util.files import write_atomic
run_dir = RunDir(Path(sys.argv[1]))
number = run_dir.path / "number"
traced = {lock.__file__, files.__file__}
def hold():
    with lock.deployment_lock(run_dir, timeout_s=30) as lease:
        lock.require_lease()
        write_atomic(number, str(lease.epoch))
        return lease.epoch
def stop_at(line):
    seen = 0
    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal.SIGSTOP)
        return trace
    sys.settrace(trace)
line, stops, lost = 0, 0, 0
while True:
    line += 1
    told = run_dir.path / "told"
    told.write_text("0")
    child = os.fork()
    if not child:
        lock.LEASE_S, lock.BEAT_S = 0.05, 0.01
        stop_at(line)
        try:
            told.write_text(str(hold()))
        except TakenOver:
            pass
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    stops += 1
    lock.LEASE_S = 0.03
    mine = hold()
    assert number.read_text() == str(mine)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    theirs = int(told.read_text())
    lost += not theirs
    assert int(number.read_text()) == max(mine, theirs), (line, mine, theirs)
print(stops, lost)
"""


@pytest.mark.timeout(180)
def test_paused_at_every_line(run_dir: RunDir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_LINE, str(run_dir.path)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    stops, lost = map(int, done.stdout.split())
    assert stops > 60
    assert 5 < lost < stops
