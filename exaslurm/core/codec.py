"""Frozen dataclasses to JSON and back, strictly.

Unknown keys, missing keys and wrong types are errors that name the path of the value, so that a
file of another version is refused instead of half understood. Supported field types: ``str``,
``int``, ``float``, ``bool``, ``None``, ``Literal``, unions, ``tuple[X, ...]``, ``tuple[X, Y]``,
``Mapping[str, X]`` and frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from exaslurm.errors import StateError

T = TypeVar("T")


def to_jsonable(value: Any) -> Any:
    """Plain JSON data of a value made of the supported types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON text with sorted keys: equal values give equal text."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(
        to_jsonable(value), sort_keys=True, indent=indent, separators=separators, allow_nan=False
    )
    return text + "\n" if indent is not None else text


def content_hash(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def loads(kind: type[T], text: str | bytes, *, where: str) -> T:
    """Build ``kind`` from JSON text; ``where`` (a file or address) is named in errors."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{where}: not JSON") from error
    return from_jsonable(kind, data, where=where)


def from_jsonable(kind: type[T], data: Any, *, where: str) -> T:
    """Build ``kind`` from plain JSON data; raises StateError naming the path of a bad value."""
    return typing.cast(T, _build(kind, data, where))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(typing.cast(type, kind), data, where)
    if origin is typing.Literal:
        if data in typing.get_args(kind):
            return data
        raise StateError(f"{where}: {data!r} is none of {list(typing.get_args(kind))}")
    if origin in (typing.Union, types.UnionType):
        return _build_union(typing.get_args(kind), data, where)
    if origin is tuple:
        items = typing.get_args(kind)
        if not isinstance(data, list):
            raise StateError(f"{where}: expected a list, found {type(data).__name__}")
        if items[-1] is not Ellipsis:
            if len(data) != len(items):
                raise StateError(f"{where}: expected {len(items)} items, found {len(data)}")
            pairs = enumerate(zip(items, data, strict=True))
            return tuple(_build(item, part, f"{where}[{i}]") for i, (item, part) in pairs)
        item = items[0]
        return tuple(_build(item, part, f"{where}[{i}]") for i, part in enumerate(data))
    if origin in (Mapping, dict) or (origin and issubclass(origin, Mapping)):
        if not isinstance(data, dict):
            raise StateError(f"{where}: expected an object, found {type(data).__name__}")
        item = typing.get_args(kind)[1]
        return {key: _build(item, part, f"{where}.{key}") for key, part in data.items()}
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return _finite(data, where)
    if kind is type(None):
        kind = types.NoneType
    if isinstance(data, kind) and not (isinstance(data, bool) and kind is not bool):
        return data
    raise StateError(f"{where}: expected {kind.__name__}, found {data!r}")


def _finite(data: float, where: str) -> float:
    """JSON has no other numbers, though Python's reader takes ``NaN`` and ``1e999``."""
    try:
        value = float(data)
    except OverflowError:  # an integer beyond it
        value = math.inf
    if not math.isfinite(value):
        raise StateError(f"{where}: {data!r:.40} is no finite number")
    return value


def _build_union(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    last: StateError | None = None
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return _build(kind, data, where)
        except StateError as error:
            last = error
    raise last or StateError(f"{where}: unexpected {data!r}")


def _build_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise StateError(f"{where}: expected an object, found {type(data).__name__}")
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise StateError(f"{where}: unknown key {unknown[0]!r} (written by another version?)")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _build(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise StateError(f"{where}: key {name!r} is missing")
    return kind(**values)
