"""Fields of ``multipart/form-data`` bodies (audio), found without copying the file in them.

What is found is what Starlette's parser (python-multipart) finds in an engine. Where another parser
could find something else, the form is refused: keys may be for some models only.
"""

from __future__ import annotations

import re
from typing import Final

# Parameters as Starlette's parser tells them apart: a quote is one unless a backslash precedes it.
_PARAMETER: Final = re.compile(
    rb';([^=;"]*)(?:=([ \t]*"(?:[^"]|(?<=\\)")*(?<!\\)"[ \t]*|[^;"]*))?(?=;|\Z)'
)
_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\r\n]*)")
_BEHIND_DELIMITER: Final = re.compile(rb"--|[ \t]*\r\n")
# Starlette's parser takes 8 lines of 4224 bytes, and of each 1000 fields and files.
_MAX_HEAD_BYTES: Final = 8 * 4224
_MAX_PARTS: Final = 2000
# In which the names of fields and parameters are what they look like.
_CHARSETS: Final = frozenset((b"utf-8", b"utf8", b"us-ascii", b"ascii", b"iso-8859-1", b"latin-1"))
_MAX_TYPE_BYTES: Final = 8192
_FILE: Final = frozenset((b"filename", b"filename*"))


def is_form(content_type: bytes) -> bool:
    return content_type[:19].lower() == b"multipart/form-data"


def fields(raw: bytes, content_type: bytes, *names: bytes) -> dict[bytes, list[tuple[int, int]]]:
    """Start and end of each value of each of the named fields. ValueError with what is wrong, if
    the form cannot be read in one way only."""
    found: dict[bytes, list[tuple[int, int]]] = {name: [] for name in names}
    delimiter = b"\r\n--" + _boundary(content_type)
    # Starlette's parser overlooks what comes first only if it begins with the end of a line.
    at = max(0, raw.find(b"-")) if raw[:1] in (b"\r", b"\n") else 0
    if not raw.startswith(delimiter[2:], at):
        raise ValueError("it does not begin with its boundary")
    at += len(delimiter) - 2
    for _ in range(_MAX_PARTS):
        behind = _BEHIND_DELIMITER.match(raw, at)
        if behind is None:
            if at == len(raw):
                return found
            raise ValueError("a line begins with its boundary, and is none")
        head = behind.end()
        if behind[0] == b"--":
            return found
        if raw.startswith(b"\r\n", head):
            raise ValueError("a part has no Content-Disposition")
        start = raw.find(b"\r\n\r\n", head, head + _MAX_HEAD_BYTES) + 4
        if start == 3:
            if len(raw) - head > _MAX_HEAD_BYTES:
                raise ValueError(f"the head of a part is longer than {_MAX_HEAD_BYTES} bytes")
            return found
        name, is_file = _disposition(raw[head : start - 4])
        end = raw.find(delimiter, start)
        if end < 0:  # a part without an end is none
            return found
        if name in found:
            if is_file:
                raise ValueError(f"the field {name.decode()!r} is a file")
            found[name].append((start, end))
        at = end + len(delimiter)
    raise ValueError(f"it has more than {_MAX_PARTS} parts")


def _boundary(content_type: bytes) -> bytes:
    if len(content_type) > _MAX_TYPE_BYTES:
        raise ValueError(f"its Content-Type is longer than {_MAX_TYPE_BYTES} bytes")
    kind, given = _parameters(content_type, b"Content-Type")
    if kind.lower() != b"multipart/form-data":
        raise ValueError("its Content-Type is not 'multipart/form-data'")
    if given.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise ValueError("its charset must be UTF-8")
    boundary = given.get(b"boundary")
    if not boundary:
        raise ValueError("its Content-Type names no boundary")
    return boundary


def _disposition(head: bytes) -> tuple[bytes, bool]:
    """The name of a part's field, and whether it is a file."""
    found: bytes | None = None
    for text in head.split(b"\r\n"):
        line = _LINE.fullmatch(text)
        if line is None:
            raise ValueError("a line in the head of a part is no header field")
        if line[1].lower() == b"content-disposition":
            if found is not None:
                raise ValueError("a part has a second Content-Disposition")
            found = line[2]
    if found is None:
        raise ValueError("a part has no Content-Disposition")
    given = _parameters(found, b"Content-Disposition")[1]
    if b"name" not in given:
        raise ValueError("a Content-Disposition names no field")
    return given[b"name"], not _FILE.isdisjoint(given)


def _parameters(field: bytes, title: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """What stands before the parameters of a header field, and these, names in lower case."""
    kind = field.partition(b";")[0]
    if b'"' in kind:
        raise ValueError(f"its {title.decode()} cannot be read")
    given: dict[bytes, bytes] = {}
    at = len(kind)
    while at < len(field):
        found = _PARAMETER.match(field, at)
        if found is None:
            raise ValueError(f"its {title.decode()} cannot be read")
        at = found.end()
        name = found[1].strip(b" \t").lower()
        value = (found[2] or b"").strip(b" \t")
        if value[:1] == b'"':
            value = value[1:-1].replace(b"\\\\", b"\\").replace(b'\\"', b'"')
        if name and name in given:
            raise ValueError(f"its {title.decode()} has a second {name.decode('latin-1')!r}")
        # Parsers differ in whether they know such names (RFC 2231) as other ways to write these.
        if name.startswith((b"name*", b"boundary*", b"charset*")):
            raise ValueError(f"its {title.decode()} has {name.decode('latin-1')!r}")
        given[name] = value
    return kind.strip(b" \t"), given
