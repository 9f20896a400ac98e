from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import stat
import threading
import types
from pathlib import Path

import pytest

from exaslurm.errors import StateError, UserError
from exaslurm.keys.clients import (
    ClientKeys,
    KeyInfo,
    KeyOptions,
    add_key,
    change_key,
    list_keys,
    remove_key,
)
from exaslurm.rundir import RunDir
from exaslurm.util.files import make_private_dir


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


def test_allows_is_what_the_list_of_models_says() -> None:
    info = KeyInfo(name="ada", created_s=0.0)
    assert info.allows("anything:at-all")
    assert info == KeyInfo(name="ada", created_s=0.0)
    assert dataclasses.replace(info, models=("m",)).allows("m:b")
    assert not dataclasses.replace(info, models=("m",)).allows("n")


def test_the_header_is_taken_as_it_came(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice", expires_s=3600).encode()
    keys = ClientKeys(run_dir, internal_key="inner")
    keys.refresh()
    now_s = list_keys(run_dir)[0].created_s
    for value in (b"Bearer " + key, b"bearer " + key, b"BEARER " + key, b"Bearer  " + key + b" "):
        found = keys.find(value, now_s)
        assert found is not None
        assert found.name == "alice"
    assert keys.find_key(key, now_s) == found
    inner = keys.find(b"Bearer inner", now_s)
    assert inner is not None
    assert inner.name == "internal"
    wrong = (b"", b"Bearer", b"Bearer ", key, b"Basic " + key, b"Bearer" + key, b"Bearer\t" + key,
             b"Bearer " + key + b"x", b"Bearer \xff\xfe", b"Bearer " + b"x" * 100_000)  # fmt: skip
    for value in wrong:
        assert keys.find(value, now_s) is None
    assert keys.find_key(b"", now_s) is None
    assert keys.find(b"Bearer " + key, now_s + 3600) is None
    assert keys.find_key(key, now_s + 3600) is None


def test_no_key_is_held_in_memory(run_dir: RunDir) -> None:
    key = add_key(run_dir, "alice")
    keys = ClientKeys(run_dir, internal_key="the inner key")
    keys.refresh()
    assert keys.find(f"Bearer {key}".encode(), 0.0) is not None
    seen, todo = set[int](), [object.__getattribute__(keys, "__dict__")]
    while todo:
        here = todo.pop()
        if id(here) in seen or isinstance(here, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(here))
        if isinstance(here, str | bytes):
            text = here if isinstance(here, str) else here.decode("latin-1")
            assert key not in text
            assert "the inner key" not in text
        todo += gc.get_referents(here)


def test_limits_are_kept_and_changed(run_dir: RunDir) -> None:
    key = add_key(
        run_dir, "alice", requests_per_min=60, tokens_per_min=0, concurrency=4, priority=-2
    )
    info = list_keys(run_dir)[0]
    assert (info.requests_per_min, info.tokens_per_min, info.concurrency) == (60, None, 4)
    assert info.priority == -2
    add_key(run_dir, "bob", expires_s=5, models=["m"])
    changed = change_key(run_dir, "alice", tokens_per_min=1000, concurrency=0, expires_s=60)
    assert list_keys(run_dir)[0] == changed
    assert (changed.requests_per_min, changed.tokens_per_min, changed.concurrency) == (
        60, 1000, None,
    )  # fmt: skip
    assert changed.expires_at_s is not None
    assert change_key(run_dir, "alice", expires_s=None).expires_at_s is None
    assert change_key(run_dir, "bob", models=()).models == ()
    keys = ClientKeys(run_dir)
    keys.refresh()
    assert keys.check_key(key) == list_keys(run_dir)[0]  # it is the same key still


def test_limits_that_cannot_be(run_dir: RunDir) -> None:
    wrong: list[KeyOptions] = [
        {"requests_per_min": -1}, {"tokens_per_min": -1}, {"concurrency": -5}, {"expires_s": -1},
    ]  # fmt: skip
    add_key(run_dir, "alice")
    before = run_dir.client_keys.read_bytes()
    for options in wrong:
        with pytest.raises(UserError, match="cannot"):
            add_key(run_dir, "bob", **options)
        with pytest.raises(UserError, match="cannot"):
            change_key(run_dir, "alice", **options)
    with pytest.raises(UserError, match="no key named 'bob'") as caught:
        change_key(run_dir, "bob", concurrency=1)
    assert caught.value.remedy == "known keys: alice"
    assert run_dir.client_keys.read_bytes() == before


def test_files_of_before_there_were_limits_are_read(run_dir: RunDir) -> None:
    digest = hashlib.sha256(b"exa-old").hexdigest()
    info = {"name": "old", "created_s": 1.5, "expires_at_s": None, "models": ["m"]}
    text = {"schema": "exaslurm/clients/1", "keys": [{"sha256": digest, "info": info}]}
    make_private_dir(run_dir.keys)
    run_dir.client_keys.write_text(json.dumps(text))
    run_dir.client_keys.chmod(0o600)
    keys = ClientKeys(run_dir)
    keys.refresh()
    found = keys.find(b"Bearer exa-old", 2.0)
    assert found == KeyInfo(name="old", created_s=1.5, models=("m",))
    assert change_key(run_dir, "old", concurrency=2).concurrency == 2
    assert keys.refresh()
    again = keys.find(b"Bearer exa-old", 2.0)
    assert again is not None
    assert again.concurrency == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"concurrency": 3', '"concurrency": -3', "a limit of 'alice' is below 0"),
        ('"sha256": "', '"sha256": "zz', "the hash of 'alice' is not hexadecimal"),
        ('"concurrency": 3', '"concurrency": "3"', "concurrency"),
    ],
)
def test_an_edited_store_is_refused_as_a_whole(
    run_dir: RunDir, old: str, new: str, says: str
) -> None:
    key = add_key(run_dir, "alice", concurrency=3)
    keys = ClientKeys(run_dir)
    keys.refresh()
    text = run_dir.client_keys.read_text()
    assert old in text
    run_dir.client_keys.write_text(text.replace(old, new))
    with pytest.raises(StateError, match=says):
        keys.refresh()
    assert keys.check_key(key) is not None


def test_names_are_checked_and_unique(run_dir: RunDir) -> None:
    add_key(run_dir, "alice")
    with pytest.raises(UserError, match="already"):
        add_key(run_dir, "alice")
    for bad in ("", "-x", "a b", "a/b", "x" * 65, "a\n"):
        with pytest.raises(UserError, match="no name for a key"):
            add_key(run_dir, bad)
    with pytest.raises(UserError, match="the deployment's own key"):
        add_key(run_dir, "internal")
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


@pytest.mark.parametrize("life_s", [0, -1, float("nan"), 8.64e18, float("inf")])
def test_the_end_of_a_key_is_a_date(run_dir: RunDir, life_s: float) -> None:
    with pytest.raises(UserError, match="cannot live for"):
        add_key(run_dir, "alice", expires_s=life_s)
