"""The keys that clients show to a router: stored hashed, shown once.

A key is 256 random bits, so one SHA-256 is enough: there is nothing to guess, and no salt or
slow hash would add to it. The look-up is by that hash, so its time tells nothing about a key.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from exaslurm.core.codec import dumps, loads
from exaslurm.errors import StateError, UserError
from exaslurm.keys.secrets import SECRET_BYTES, read_private
from exaslurm.rundir import RunDir
from exaslurm.util.files import is_there, make_private_dir, write_atomic
from exaslurm.util.lock import file_lock

if TYPE_CHECKING:
    from typing_extensions import Unpack

KEY_PREFIX = "exa-"
INTERNAL = "internal"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MAX_STORE_BYTES = 16 * 1024 * 1024
_MAX_KEY_CHARS = 512
_BEARER = b"bearer "
# A hundred years.
_LONGEST_LIFE_S = 100 * 365.25 * 24 * 3600


class _Scope:
    """Room for what is derived from a key's fields, and no field itself."""

    __slots__ = ("_allowed",)
    _allowed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo(_Scope):
    """Whose key it is and what it may do.

    Times are Unix seconds; no ``models`` means every model. None (or 0) of requests and tokens
    per minute and of ``concurrency``, requests at a time, is no limit. Requests of a higher
    ``priority`` are let in first where some have to wait.
    """

    name: str
    created_s: float
    expires_at_s: float | None = None
    models: tuple[str, ...] = ()
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrency: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", frozenset(self.models))

    def is_expired(self, now_s: float) -> bool:
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def allows(self, served_name: str) -> bool:
        """Whether the key may use a served name: it, or the model it is a shard of, is listed."""
        allowed = self._allowed
        return not allowed or served_name in allowed or served_name.partition(":")[0] in allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredKey:
    sha256: str
    info: KeyInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    schema: Literal["exaslurm/clients/1"] = "exaslurm/clients/1"
    keys: tuple[_StoredKey, ...] = ()


class KeyOptions(TypedDict, total=False):
    """What can be said of a key when it is made, and changed later; see ``KeyInfo``.

    ``expires_s`` is its life in seconds from now, ``models`` the served names (or models) that
    it may use. None, 0 and no models lift a limit.
    """

    expires_s: float | None
    models: Iterable[str]
    requests_per_min: int | None
    tokens_per_min: int | None
    concurrency: int | None
    priority: int


def add_key(run_dir: RunDir, name: str, **options: Unpack[KeyOptions]) -> str:
    """Make a key and return it: the only time that it is seen.

    UserError if the name is taken or not usable, or a limit is below 0.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name for a key",
            remedy="use 1 to 64 letters, digits and . _ @ -, starting with a letter or digit",
        )
    if name == INTERNAL:
        raise UserError(
            f"{name!r} is what the deployment's own key is called", remedy="choose another name"
        )
    now_s = time.time()
    info = _with_options(KeyInfo(name=name, created_s=now_s), options, now_s)
    make_private_dir(run_dir.keys)
    key = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    with file_lock(_lock_path(run_dir)):
        store = _load(run_dir)
        if any(stored.info.name == name for stored in store.keys):
            raise UserError(
                f"there is a key named {name!r} already",
                remedy=f"choose another name, or remove it first: exaslurm key remove {name}",
            )
        _save(
            run_dir, (*store.keys, _StoredKey(sha256=sha256(key.encode()).hexdigest(), info=info))
        )
    return key


def change_key(run_dir: RunDir, name: str, **options: Unpack[KeyOptions]) -> KeyInfo:
    """Change what is given of a key, and keep the rest; returns what it is now.

    UserError (with the names there are) if there is none of that name, or a limit is below 0.
    """
    make_private_dir(run_dir.keys)
    with file_lock(_lock_path(run_dir)):
        keys = list(_load(run_dir).keys)
        for index, stored in enumerate(keys):
            if stored.info.name == name:
                info = _with_options(stored.info, options, time.time())
                keys[index] = dataclasses.replace(stored, info=info)
                _save(run_dir, tuple(keys))
                return info
    raise _unknown(name, keys)


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
            raise _unknown(name, kept)
        _save(run_dir, kept)


class ClientKeys:
    """The keys as a router uses them: ``refresh`` reads the file, everything else only memory,
    which holds hashes of the keys and no key.

    ``store`` is a deployment's directory, or the file itself. ``internal_key`` (the deployment's
    own) is accepted too, as ``internal``.
    """

    def __init__(
        self,
        store: RunDir | Path,
        *,
        internal_key: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = store if isinstance(store, Path) else store.client_keys
        self._clock = clock
        self._raw: bytes | None = None
        self._internal: dict[bytes, KeyInfo] = {}
        if internal_key is not None:
            digest = sha256(internal_key.encode()).digest()
            self._internal[digest] = KeyInfo(name=INTERNAL, created_s=0.0)
        self._by_digest: Mapping[bytes, KeyInfo] = self._internal

    def refresh(self) -> bool:
        """Read the file again; true if its content is new. A missing file means no keys (yet).

        On StateError (unreadable, loose mode, damaged, without its directory) what was known stays
        in use.
        """
        path = self._path
        raw = read_private(path, limit=_MAX_STORE_BYTES) if is_there(path) else b""
        if raw == self._raw:
            return False
        store = loads(_Store, raw, where=str(path)) if raw else _Store()
        known = {_digest(stored, path): stored.info for stored in store.keys}
        self._by_digest = known | self._internal
        self._raw = raw
        return True

    @property
    def state(self) -> object:
        """The same object as long as the keys are."""
        return self._by_digest

    def find(self, authorization: bytes, now_s: float) -> KeyInfo | None:
        """Whose key the value of an ``Authorization`` field holds, as it came: ``Bearer KEY``.

        ``now_s``: Unix seconds. None for another scheme, an unknown key and an expired one.
        """
        if authorization[:7].lower() != _BEARER:
            return None
        return self.find_key(authorization[7:], now_s)

    def find_key(self, key: bytes, now_s: float) -> KeyInfo | None:
        """Whose key this is, as it came in ``X-Api-Key``; see ``find``."""
        if len(key) > _MAX_KEY_CHARS:
            return None
        info = self._by_digest.get(sha256(key).digest())
        if info is None:
            bare = key.strip()
            if bare == key or (info := self._by_digest.get(sha256(bare).digest())) is None:
                return None
        end_s = info.expires_at_s
        return info if end_s is None or now_s < end_s else None

    def check(self, header: str | None) -> KeyInfo | None:
        """Whose key an ``Authorization`` header holds; None if it is none of ours."""
        if not header:
            return None
        scheme, _, key = header.partition(" ")
        return self.check_key(key.strip()) if scheme.lower() == "bearer" else None

    def check_key(self, key: str) -> KeyInfo | None:
        """Whose key this is; None for an unknown or expired one."""
        return self.find_key(key.encode("utf-8", "surrogateescape"), self._clock())

    @property
    def empty(self) -> bool:
        """Whether there is no client key at all."""
        return len(self._by_digest) == len(self._internal)


def _with_options(info: KeyInfo, options: KeyOptions, now_s: float) -> KeyInfo:
    """The key with what the options say; UserError for what cannot be."""
    changes: dict[str, Any] = dict(options)
    if "expires_s" in changes:
        expires_s = changes.pop("expires_s")
        if expires_s is not None and not expires_s > 0:
            raise UserError(f"a key cannot live for {expires_s:g} s", remedy="give a time above 0")
        if expires_s is not None and expires_s > _LONGEST_LIFE_S:  # its end has to be a date
            raise UserError(
                f"a key cannot live for {expires_s:g} s", remedy="give 'never' for one without end"
            )
        changes["expires_at_s"] = None if expires_s is None else now_s + expires_s
    if "models" in changes:
        changes["models"] = tuple(changes["models"])
    for limit in ("requests_per_min", "tokens_per_min", "concurrency"):
        if limit in changes:
            value = changes[limit] or None
            if value is not None and value < 0:
                raise UserError(
                    f"{limit.replace('_', ' ')} of a key cannot be {value}",
                    remedy="give a number above 0, or 0 for no limit",
                )
            changes[limit] = value
    return dataclasses.replace(info, **changes)


def _unknown(name: str, keys: Iterable[_StoredKey]) -> UserError:
    names = ", ".join(stored.info.name for stored in keys) or "there are none"
    return UserError(f"no key named {name!r}", remedy=f"known keys: {names}")


def _digest(stored: _StoredKey, path: Path) -> bytes:
    """The hash of a stored key; StateError if it, or a limit, cannot be (the file was edited)."""
    info = stored.info
    if min(info.requests_per_min or 0, info.tokens_per_min or 0, info.concurrency or 0) < 0:
        raise StateError(f"{path}: a limit of {info.name!r} is below 0")
    try:
        return bytes.fromhex(stored.sha256)
    except ValueError as error:
        raise StateError(f"{path}: the hash of {info.name!r} is not hexadecimal") from error


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
