"""Gives a request another model's name, and touches nothing else in its body.

Parsing and writing a body anew loses things (order, duplicates, number forms, unknown fields);
here the bytes of the one value are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import orjson

from exaslurm.router.forms import fields, is_form

_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]*")
_MARK = re.compile(rb'["\[\]{}]')
_BACKSLASH = ord("\\")
_OPENING = b"{["
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def replace_model(
    raw: bytes,
    model: str,
    content_type: bytes = b"application/json",
    *,
    named: str | None = None,
) -> bytes:
    """The body with ``model`` for each name that its top level (or form) gives as the model.

    For bodies that ``peek`` has read (ValueError for some others); one that names no model comes
    back as it is. ``named`` is the model that ``peek`` found: knowing that there is one, it is
    found faster.
    """
    if is_form(content_type):
        return _put(raw, fields(raw, content_type, b"model")[b"model"], model.encode())
    if b"\0" in raw[:4] or raw[:2] in _UTF16_MARKS:
        encoding = json.detect_encoding(raw)
        text = raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        changed = _put(text, _models(text), orjson.dumps(model))
        return changed.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass")
    spans = (named is not None and _the_only_one(raw)) or _models(raw)
    return _put(raw, spans, orjson.dumps(model))


def _put(raw: bytes, spans: list[tuple[int, int]], value: bytes) -> bytes:
    """The bytes with ``value`` in each of the places."""
    parts: list[bytes] = []
    at = 0
    for start, end in spans:
        parts += (raw[at:start], value)
        at = end
    return b"".join((*parts, raw[at:])) if parts else raw


def _the_only_one(raw: bytes) -> list[tuple[int, int]]:
    """Where the value is, in a body that certainly has one, if its key can be but at one place.

    A quote inside of a string is escaped, so ``"model"`` in quotes is a whole string. If there is
    one only, and no letter of another is spelled as ``\\u006.``, that is the key.
    """
    key = raw.find(b'"model"')
    behind = key + len(b'"model"')
    if key < 0 or raw.find(b'"model"', behind) >= 0 or b"\\u006" in raw:
        return []
    colon = _COLON.match(raw, behind)
    if colon is None or raw[colon.end() : colon.end() + 1] != b'"':
        return []
    return [(colon.end(), _string_end(raw, colon.end()))]


def _models(raw: bytes) -> list[tuple[int, int]]:
    """Start and end of each string that is the value of a top-level ``"model"``."""
    return [
        (start, end)
        for key, start, end in _members(raw)
        if raw[start : start + 1] == b'"'
        and (key == b'"model"' or (b"\\" in key and _decoded(key) == "model"))
    ]


def _decoded(key: bytes) -> str | None:
    try:
        return str(json.loads(key))
    except ValueError:
        return None


def _members(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Key, start and end of value of each member of the outermost object."""
    at = raw.find(b"{") + 1
    while at:
        quote = raw.find(b'"', at)
        if quote < 0:
            return
        end_of_key = _string_end(raw, quote)
        colon = _COLON.match(raw, end_of_key)
        if colon is None:
            return
        end = _value_end(raw, colon.end())
        yield raw[quote:end_of_key], colon.end(), end
        at = end


def _value_end(raw: bytes, at: int) -> int:
    first = raw[at : at + 1]
    if first == b'"':
        return _string_end(raw, at)
    if not first or first not in _OPENING:
        scalar = _SCALAR.match(raw, at)
        return scalar.end() if scalar else len(raw)
    depth = 1
    at += 1
    while depth:
        mark = _MARK.search(raw, at)
        if mark is None:
            return len(raw)
        at = mark.end()
        found = mark[0]
        if found == b'"':
            at = _string_end(raw, at - 1)
        elif found in _OPENING:
            depth += 1
        else:
            depth -= 1
    return at


def _string_end(raw: bytes, start: int) -> int:
    """Behind the quote that closes the string opened at ``start``."""
    end = raw.find(b'"', start + 1)
    while end > 0 and raw[end - 1] == _BACKSLASH:
        before = end - 2
        while raw[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # an even number of backslashes: each escapes the next
            break
        end = raw.find(b'"', end + 1)
    return end + 1 or len(raw)
