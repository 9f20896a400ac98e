from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from exaslurm.errors import StateError, UserError
from exaslurm.keys.clients import ClientKeys, add_key, list_keys, remove_key
from exaslurm.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "hello")
    run_dir.make()
    return run_dir


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def test_a_key_is_stored_hashed_and_private(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice")
    assert key.startswith("exa-")
    assert len(key) >= 47
    assert key not in run_dir.client_keys.read_text()
    assert stat.S_IMODE(run_dir.client_keys.stat().st_mode) == 0o600
    assert [info.name for info in list_keys(run_dir)] == ["alice"]


def test_check_knows_whose_key_it_is(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice")
    keys = ClientKeys(run_dir, internal_key="inner")
    assert keys.empty
    assert keys.refresh()
    assert not keys.empty
    found = keys.check(f"Bearer {key}")
    assert found is not None
    assert found.name == "alice"
    inner = keys.check("bearer inner")
    assert inner is not None
    assert inner.name == "internal"
    for wrong in (None, "", key, f"Basic {key}", "Bearer ", f"Bearer {key}x", "Bearer \udcff"):
        assert keys.check(wrong) is None


def test_changes_are_seen_at_the_next_refresh(run_dir: RunDir) -> None:
    keys = ClientKeys(run_dir)
    assert keys.refresh()
    assert not keys.refresh()
    key = add_key(run_dir, "alice")
    assert keys.check_key(key) is None
    assert keys.refresh()
    assert keys.check_key(key) is not None
    remove_key(run_dir, "alice")
    assert keys.refresh()
    assert keys.check_key(key) is None


def test_a_damaged_or_loose_store_changes_nothing(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice")
    keys = ClientKeys(run_dir)
    keys.refresh()
    run_dir.client_keys.write_text("{")
    with pytest.raises(StateError, match="not JSON"):
        keys.refresh()
    assert keys.check_key(key) is not None
    run_dir.client_keys.chmod(0o644)
    with pytest.raises(StateError, match="can be used by others"):
        keys.refresh()
    assert keys.check_key(key) is not None


def test_an_expired_key_is_refused_without_a_refresh(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice", expires_s=3600)
    created_s = list_keys(run_dir)[0].created_s
    clock = Clock(created_s)
    keys = ClientKeys(run_dir, clock=clock)
    keys.refresh()
    clock.now_s = created_s + 3599
    assert keys.check_key(key) is not None
    clock.now_s = created_s + 3600
    assert keys.check_key(key) is None


def test_scopes_name_models_or_shards(run_dir: RunDir) -> None:
    add_key(run_dir, "alice", models=["chat", "embed:small"])
    info = list_keys(run_dir)[0]
    assert info.allows("chat")
    assert info.allows("chat:base")
    assert info.allows("embed:small")
    assert not info.allows("embed")
    assert not info.allows("embed:large")
    assert not info.allows("chatty")


def test_names_are_checked_and_unique(run_dir: RunDir) -> None:
    add_key(run_dir, "alice")
    with pytest.raises(UserError, match="already"):
        add_key(run_dir, "alice")
    for bad in ("", "-x", "a b", "a/b", "x" * 65, "a\n"):
        with pytest.raises(UserError, match="no name for a key"):
            add_key(run_dir, bad)
    with pytest.raises(UserError, match="cannot live"):
        add_key(run_dir, "bob", expires_s=0)
    with pytest.raises(UserError, match="no key named 'bob'") as caught:
        remove_key(run_dir, "bob")
    assert "alice" in str(caught.value.remedy)


def test_keys_added_at_once_are_all_kept(run_dir: RunDir) -> None:
    names = [f"user{number}" for number in range(12)]
    threads = [threading.Thread(target=add_key, args=(run_dir, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(info.name for info in list_keys(run_dir)) == sorted(names)
