"""Fields of ``multipart/form-data`` bodies (audio), found without copying the file in them."""

from __future__ import annotations

import re

_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*?;\s*name=(?:"([^"\r\n]*)"|([^\s;"]+))',
    re.IGNORECASE | re.MULTILINE,
)
_MAX_HEAD_BYTES = 8192  # of one part
_MAX_PARTS = 1000  # Starlette's own limit


def is_form(content_type: bytes) -> bool:
    return content_type[:19].lower() == b"multipart/form-data"


def fields(raw: bytes, content_type: bytes, name: bytes) -> list[tuple[int, int]]:
    """Start and end of each value of the named field; none where the form cannot be read."""
    found: list[tuple[int, int]] = []
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return found
    delimiter = b"--" + (boundary[1] or boundary[2])
    at = 0 if raw.startswith(delimiter) else raw.find(b"\r\n" + delimiter) + 2
    if at == 1:  # no part at all
        return found
    delimiter = b"\r\n" + delimiter
    for _ in range(_MAX_PARTS):
        head = at + len(delimiter) - 2
        start = raw.find(b"\r\n\r\n", head, head + _MAX_HEAD_BYTES) + 4
        end = raw.find(delimiter, head)
        if start == 3 or end < start:
            break
        disposition = _NAME.search(raw[head:start])
        if disposition is not None and (disposition[1] or disposition[2]) == name:
            found.append((start, end))
        at = end + 2
    return found
