"""The keys that clients show to a router: stored hashed, shown once.

A key is 256 random bits, so one SHA-256 is enough: there is nothing to guess, and no salt or
slow hash would add to it. The look-up is by that hash, so its time tells nothing about a key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exaslurm.core.codec import dumps, loads
from exaslurm.errors import StateError, UserError
from exaslurm.keys.secrets import SECRET_BYTES, read_private
from exaslurm.rundir import RunDir
from exaslurm.util.files import make_private_dir, write_atomic
from exaslurm.util.lock import file_lock

KEY_PREFIX = "exa-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MAX_STORE_BYTES = 16 * 1024 * 1024
_MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """Who a key belongs to. Times are Unix seconds; no ``models`` means every model."""

    name: str
    created_s: float
    expires_at_s: float | None = None
    models: tuple[str, ...] = ()

    def is_expired(self, now_s: float) -> bool:
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def allows(self, served_name: str) -> bool:
        """Whether the key may use a served name: it, or the model it is a shard of, is listed."""
        if not self.models:
            return True
        return served_name in self.models or served_name.split(":", 1)[0] in self.models


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredKey:
    sha256: str
    info: KeyInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    schema: Literal["exaslurm/clients/1"] = "exaslurm/clients/1"
    keys: tuple[_StoredKey, ...] = ()


def add_key(
    run_dir: RunDir, name: str, *, expires_s: float | None = None, models: Iterable[str] = ()
) -> str:
    """Make a key and return it: the only time that it is seen.

    ``expires_s`` is its life in seconds from now, ``models`` the served names (or models) that
    it may use. UserError if the name is taken or not usable.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name for a key",
            remedy="use 1 to 64 letters, digits and . _ @ -, starting with a letter or digit",
        )
    if expires_s is not None and not expires_s > 0:
        raise UserError(f"a key cannot live for {expires_s:g} s", remedy="give a time above 0")
    make_private_dir(run_dir.keys)
    key = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    now_s = time.time()
    info = KeyInfo(
        name=name,
        created_s=now_s,
        expires_at_s=None if expires_s is None else now_s + expires_s,
        models=tuple(models),
    )
    with file_lock(_lock_path(run_dir)):
        store = _load(run_dir)
        if any(stored.info.name == name for stored in store.keys):
            raise UserError(
                f"there is a key named {name!r} already",
                remedy=f"choose another name, or remove it first: exaslurm key remove {name}",
            )
        _save(run_dir, (*store.keys, _StoredKey(sha256=_hash(key), info=info)))
    return key


def list_keys(run_dir: RunDir) -> list[KeyInfo]:
    """All keys, expired ones too, in the order they were made."""
    return [stored.info for stored in _load(run_dir).keys]


def remove_key(run_dir: RunDir, name: str) -> None:
    """Remove a key; UserError (with the names there are) if there is none of that name."""
    make_private_dir(run_dir.keys)
    with file_lock(_lock_path(run_dir)):
        store = _load(run_dir)
        kept = tuple(stored for stored in store.keys if stored.info.name != name)
        if len(kept) == len(store.keys):
            names = ", ".join(stored.info.name for stored in kept) or "there are none"
            raise UserError(f"no key named {name!r}", remedy=f"known keys: {names}")
        _save(run_dir, kept)


class ClientKeys:
    """The keys as a router uses them: ``refresh`` reads the file, ``check`` only memory.

    ``internal_key`` (the deployment's own) is accepted too, as ``internal``.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        internal_key: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._raw: bytes | None = None
        self._internal: dict[str, KeyInfo] = {}
        if internal_key is not None:
            self._internal[_hash(internal_key)] = KeyInfo(name="internal", created_s=0.0)
        self._by_hash: Mapping[str, KeyInfo] = self._internal

    def refresh(self) -> bool:
        """Read the file again; true if its content is new. A missing file means no keys (yet).

        On StateError (unreadable, loose mode, damaged) what was known stays in use.
        """
        path = self._run_dir.client_keys
        raw = read_private(path, limit=_MAX_STORE_BYTES) if path.exists() else b""
        if raw == self._raw:
            return False
        store = loads(_Store, raw, where=str(path)) if raw else _Store()
        self._by_hash = {stored.sha256: stored.info for stored in store.keys} | self._internal
        self._raw = raw
        return True

    def check(self, header: str | None) -> KeyInfo | None:
        """Whose key an ``Authorization`` header holds; None if it is none of ours."""
        if not header:
            return None
        scheme, _, key = header.partition(" ")
        return self.check_key(key.strip()) if scheme.lower() == "bearer" else None

    def check_key(self, key: str) -> KeyInfo | None:
        """Whose key this is; None for an unknown or expired one."""
        if not key or len(key) > _MAX_KEY_CHARS:
            return None
        info = self._by_hash.get(_hash(key))
        return None if info is None or info.is_expired(self._clock()) else info

    @property
    def empty(self) -> bool:
        """Whether there is no client key at all."""
        return len(self._by_hash) == len(self._internal)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _lock_path(run_dir: RunDir) -> Path:
    return run_dir.client_keys.with_name(".clients.lock")


def _load(run_dir: RunDir) -> _Store:
    path = run_dir.client_keys
    if not path.exists():
        return _Store()
    return loads(_Store, read_private(path, limit=_MAX_STORE_BYTES), where=str(path))


def _save(run_dir: RunDir, keys: tuple[_StoredKey, ...]) -> None:
    if len({stored.sha256 for stored in keys}) != len(keys):
        raise StateError(f"{run_dir.client_keys}: two keys with one hash")
    write_atomic(run_dir.client_keys, dumps(dataclasses.replace(_Store(), keys=keys), indent=1))
