from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.keys.secrets import ensure_secrets, read_secret
from exaslurm.rundir import RunDir


def test_secrets_are_private_long_and_different(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "hello")
    ensure_secrets(run_dir)
    internal, token = read_secret(run_dir.internal_key), read_secret(run_dir.ray_token)
    assert internal != token
    assert min(len(internal), len(token)) >= 43  # 256 bits in base64
    for path in (run_dir.internal_key, run_dir.ray_token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(run_dir.keys.stat().st_mode) == 0o700


def test_many_callers_end_up_with_the_same_secrets(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "hello")
    seen: list[str] = []

    def work() -> None:
        ensure_secrets(run_dir)
        seen.append(read_secret(run_dir.internal_key))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert {entry.name for entry in run_dir.keys.iterdir()} == {"internal.key", "ray.token"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text("hush-hush")
    path.chmod(mode)
    with pytest.raises(StateError, match="can be used by others") as caught:
        read_secret(path)
    assert "chmod 600" in str(caught.value.remedy)
    assert "hush" not in str(caught.value)


def test_missing_empty_and_linked_secrets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot read"):
        read_secret(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    with pytest.raises(StateError, match="does not hold a secret"):
        read_secret(empty)
    for text in ("two\nlines", "two words", "\x00"):
        empty.write_text(text)
        with pytest.raises(StateError, match="does not hold a secret"):
            read_secret(empty)
    good = tmp_path / "good"
    good.touch(mode=0o600)
    good.write_text("secret\n")
    assert read_secret(good) == "secret"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(StateError, match="no regular file"):
        read_secret(pipe)  # it must not wait for somebody who writes
    link = tmp_path / "link"
    link.symlink_to(good)
    with pytest.raises(StateError, match="cannot read"):
        read_secret(link)
