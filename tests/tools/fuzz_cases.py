"""Requests that are wrong in all the ways that clients, scanners and networks get them wrong.

``make(seed, key)`` is the same case for the same seed, for ever: a failure is repeated by its seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.ask_vllm import read

CORPUS = Path(__file__).resolve().parents[1] / "router" / "corpus"
MODEL = "fuzzed"
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/tokenize", "/v1/rerank", "/v1/score", "/pooling"),
)
PAGES = ("/health", "/ready", "/metrics", "/status", "/v1/models", "/v1/models/x", "/", "/nope")
METHODS = (b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"NOPE", b"post")

Random = random.Random
_MAX_BODY_BYTES = 200_000


@dataclass(frozen=True)
class Case:
    """``pieces`` are sent one after the other. ``answered``: it is whole, so it must have at least
    one answer. ``ends``: "wait" for an answer, "half" closed at once, "reset" at once, or "begun":
    reset when the answer has begun."""

    kind: str
    pieces: tuple[bytes, ...]
    answered: bool
    ends: str = "wait"


def make(seed: int, key: str) -> Case:
    rng = Random(seed)
    kind = rng.choice(_KINDS)
    case = kind(rng, key.encode())
    return Case(kind.__name__.strip("_"), case.pieces, case.answered, case.ends)


# JSON.

_BODIES: list[tuple[str, dict[str, Any]]] = []


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Bodies that vLLM was asked with, by path."""
    if not _BODIES:
        for file in sorted(CORPUS.glob("*-cases.jsonl")):
            _BODIES.extend((line["path"], line["body"]) for line in read(file) if "body" in line)
    return _BODIES


def _junk(rng: Random) -> Any:
    return rng.choice(
        (
            *(None, True, False, 0, -1, 1, 0.5, -0.0, 2**63, -(2**63) - 1, 2**64, 10**40, 1e308),
            *("", "x", "\x00", "\ud800", "\u2028", "é" * 50, "NaN", "__proto__", '"', "\\", "{}"),
            *("a" * 5000, "\r\nX-Injected: 1\r\n", "data: [DONE]\n\n", "%s%n{0}"),
            *([], {}, [[]], [None], {"": {}}, ["x"] * 100, list(range(200)), {"role": "user"}),
            *(float("nan"), float("inf"), [[[[[[]]]]]], {"a": {"b": {"c": [1, {"d": None}]}}}),
        )
    )


def _mutated(rng: Random, value: Any, depth: int = 0) -> Any:
    if depth > 6 or rng.random() < 0.15:
        return _junk(rng)
    if isinstance(value, dict) and value:
        value = dict(value)
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.2:
            del value[key]
        elif action < 0.4:
            value[rng.choice((*value, "x", "", "stream", "n", "\x00"))] = _junk(rng)
        else:
            value[key] = _mutated(rng, value[key], depth + 1)
        return value
    if isinstance(value, list) and value:
        value = list(value)
        place = rng.randrange(len(value))
        value[place] = _mutated(rng, value[place], depth + 1)
        return value * rng.choice((1, 1, 1, 2, 30 if depth == 1 else 1))
    return _junk(rng)


def _text(body: Any, rng: Random) -> bytes:
    separators = rng.choice(((",", ":"), (", ", ": "), (" ,\r\n\t", " : ")))
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5, separators=separators)
    return text.encode(rng.choice(("utf-8",) * 8 + ("utf-16", "utf-8-sig")), "surrogatepass")


def _body(rng: Random) -> tuple[str, bytes]:
    path, body = rng.choice(bodies())
    body = {**body, "model": MODEL} if "model" in body else body
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        body = _mutated(rng, body)
    text = _text(body, rng)
    return path, text if len(text) < _MAX_BODY_BYTES else text[:_MAX_BODY_BYTES]


def _scratched(rng: Random, raw: bytes, times: int) -> bytes:
    """Bytes changed, lost, doubled or put in."""
    data = bytearray(raw)
    for _ in range(times):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(5)
        if action == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif action == 1:
            data[at:at] = rng.choice(
                (b"\r\n", b"\n", b"\x00", b'"', b"[", b"}", b": ", b"\xff", b"0")
            )
        elif action == 2:
            del data[at : at + rng.randrange(1, 20)]
        elif action == 3:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 8))
    return bytes(data)


# HTTP.


def request(
    path: str | bytes,
    body: bytes,
    key: bytes,
    *fields: bytes,
    method: bytes = b"POST",
    length: bytes | None = None,
    kind: bytes = b"application/json",
) -> bytes:
    target = path.encode() if isinstance(path, str) else path
    lines = [
        b"%b %b HTTP/1.1" % (method, target),
        b"Host: router",
        b"Authorization: Bearer " + key,
        b"Content-Type: " + kind,
        *fields,
    ]
    if length != b"none":
        lines.append(b"Content-Length: " + (length or b"%d" % len(body)))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def good(key: bytes, *fields: bytes) -> bytes:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    return request("/v1/chat/completions", body, key, *fields)


def _one(raw: bytes, answered: bool, ends: str = "wait") -> Case:
    return Case("", (raw,), answered, ends)


def _json_values(rng: Random, key: bytes) -> Case:
    path, body = _body(rng)
    return _one(request(path, body, key), answered=True)


def _json_bytes(rng: Random, key: bytes) -> Case:
    path, body = _body(rng)
    return _one(request(path, _scratched(rng, body, rng.randrange(1, 6)), key), answered=True)


def _json_shapes(rng: Random, key: bytes) -> Case:
    count = rng.choice((10, 500, 1023, 1025, 5000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"a":[', b"]}")))
    deep = opening * count + b"1" + closing * rng.choice((count, count, count - 1, 0))
    shapes: tuple[Callable[[], bytes], ...] = (
        lambda: deep,
        lambda: b'{"model":"fuzzed","messages":' + deep + b"}",
        lambda: (
            b'{"model":"fuzzed","messages":[{"role":"user","content":"%b"}]}' % (b"x" * count * 9)
        ),
        lambda: b'{"model":"' + b"m" * count + b'","messages":[]}',
        lambda: b'{"n":' + b"9" * count + b"}",
        lambda: b'{"n":1' + b"0" * min(count, 400) + b".5e" + b"9" * min(count, 20) + b"}",
        lambda: b'{"a":1,' * count + b"}" * count,
        lambda: b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(min(count, 20_000))) + b"}",
        lambda: b"",
        lambda: rng.randbytes(count % 2000),
        lambda: b"\xef\xbb\xbf" * 3 + b"{}",
        lambda: b'{"model":"\\ud800","messages":[{"role":"user","content":"x"}]}',
    )
    body = rng.choice(shapes)()
    return _one(request(rng.choice(PATHS), body, key), answered=True)


def _head_bytes(rng: Random, key: bytes) -> Case:
    raw = good(key)
    split = raw.index(b"\r\n\r\n") + 4
    head = _scratched(rng, raw[:split], rng.randrange(1, 8))
    return _one(head + raw[split:], answered=False)


# Any of these leaves a request good HTTP, though it may be refused.
_FIELDS = (
    *(b"X-A: " + b"a" * count for count in (10, 1000, 60_000)),
    *(b"X-" + b"n" * count + b": 1" for count in (10, 1000, 60_000)),
    b"X-High: \xff\xfe\x80",
    b"X-Tab:\t1\t",
    b"Authorization: Bearer \xff\xfe",
    b"Authorization:",
    b"Authorization: Basic eDp5",
    b"X-Api-Key: \x80",
    b"Connection: close, keep-alive, X-A, host",
    b"Connection: content-length, authorization",
    b"Connection: \xff",
    b"Keep-Alive: timeout=-1",
    b"TE: trailers, deflate;q=x",
    b"Trailer: Content-Length",
    b"Upgrade: h2c",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Expect: 100-continue",
    b"Expect: 200-nothing",
    *(b"X-Request-Id: " + value for value in (b"a" * 500, b"\xff", b"a b", b"", b'"}{')),
    *(b"X-Session-Id: " + value for value in (b"", b"\xff" * 40, b"s" * 10_000)),
    *(b"X-Exaslurm-Replica: " + value for value in (b"", b"nope", b"\xff", b"../..")),
    *(b"Traceparent: " + value for value in (b"00-0-0-0", b"\xff", b"00-" + b"0" * 32 + b"-1-01")),
    b"Origin: \xff",
    b"Content-Encoding: gzip",
    b"Range: bytes=0-1",
    b"Cookie: " + b"c=1; " * 500,
    *(b"\r\n".join(b"X-%d: %d" % (n, n) for n in range(count)) for count in (5, 300, 5000)),
)
_BAD_FIELDS = (
    b": empty name",
    b"no colon",
    b"Space : before",
    b" folded: line",
    b"X-A: 1\r\n continued",
    b"X-Nul: a\x00b",
    b"X-Cr: a\rb",
    b"X-Lf: a\nb",
    b"X-\xc3\xa9: 1",
    b"Host: other",
    b"Host:",
)


def _field(rng: Random) -> bytes:
    return rng.choice(_FIELDS if rng.random() < 0.7 else _BAD_FIELDS)


def _head_fields(rng: Random, key: bytes) -> Case:
    fields = [_field(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
    return _one(good(key, *fields), answered=not set(fields).intersection(_BAD_FIELDS))


def _first_line(rng: Random, key: bytes) -> Case:
    raw = good(key).partition(b"\r\n")[2]
    path = rng.choice((*PATHS, *PAGES)).encode()
    line = rng.choice(
        (
            b"POST %b HTTP/1.0" % path,
            b"POST %b HTTP/0.9" % path,
            b"POST %b HTTP/2.0" % path,
            b"POST %b HTTP/1.9" % path,
            b"POST %b HTTP/1.1.1" % path,
            b"POST %b" % path,
            b"POST  %b HTTP/1.1" % path,
            b"POST %b HTTP/1.1 " % path,
            b"POST http://router%b HTTP/1.1" % path,
            b"POST http://[::1%b HTTP/1.1" % path,
            b"POST *%b HTTP/1.1" % path,
            b"POST //%b HTTP/1.1" % path,
            b"POST %b/ HTTP/1.1" % path,
            b"POST %b?%b HTTP/1.1"
            % (path, rng.choice((b"", b"a=b", b"%00%ff", b"\xff", b"?" * 999))),
            b"POST %b#x HTTP/1.1" % path,
            b"POST %b%%2e%%2e/%%ff HTTP/1.1" % path,
            b"POST /%b HTTP/1.1" % (b"a" * rng.choice((10, 8_000, 70_000))),
            b"POST /\xff\xfe HTTP/1.1",
            b"POST  HTTP/1.1",
            b"%b %b HTTP/1.1" % (rng.choice(METHODS), path),
            b"%b * HTTP/1.1" % rng.choice(METHODS),
            b"\r\n\r\nPOST %b HTTP/1.1" % path,
            b"\x00POST %b HTTP/1.1" % path,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        )
    )
    return _one(line + b"\r\n" + raw, answered=False)


def _lengths(rng: Random, key: bytes) -> Case:
    _, body = _body(rng)
    real = len(body)
    length = rng.choice(
        (
            *(
                b"%d" % (real + 10),
                b"%d" % max(0, real - 10),
                b"0",
                b"-1",
                b"+%d" % real,
                b"",
                b" ",
            ),
            *(b"0x%x" % real, b"%d, %d" % (real, real), b"%d,%d" % (real, real + 1), b"1e3"),
            *(b"9" * 10, b"9" * 25, b"9" * 400, b"%d\r\nContent-Length: %d" % (real, real)),
            *(b"%d\r\nContent-Length: %d" % (real, real + 5), b"%d abc" % real, b"\xff", b"none"),
            *(b"00%d" % real, b"%d\r\nTransfer-Encoding: chunked" % real, b"%d." % real),
        )
    )
    return _one(request(rng.choice(PATHS), body, key, length=length), answered=False)


def _chunked(rng: Random, key: bytes) -> Case:
    _, body = _body(rng)
    chunks, at = [], 0
    while at < len(body):
        step = rng.randrange(1, 300)
        part = body[at : at + step]
        at += step
        extension = rng.choice((b"",) * 9 + (b";x=y",))
        chunks.append(b"%x%b\r\n%b\r\n" % (len(part), extension, part))
    raw = good_raw = b"".join(chunks) + rng.choice(
        (b"0\r\n\r\n", b"000\r\n\r\n", b"0;last\r\n\r\n", b"0\r\nX-Trailer: 1\r\n\r\n")
    )
    whole = rng.random() < 0.4
    coding = b"Transfer-Encoding: chunked"
    if not whole:
        broken: tuple[Callable[[], bytes], ...] = (
            lambda: _scratched(rng, good_raw, rng.randrange(1, 5)),
            lambda: b"-5\r\nhello\r\n0\r\n\r\n",
            lambda: b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            lambda: b"f" * 100 + b"\r\nhello\r\n0\r\n\r\n",
            lambda: b"5\nhello\n0\n\n",
            lambda: b"0x5\r\nhello\r\n0\r\n\r\n",
            lambda: b"5\r\nhello0\r\n\r\n",
            lambda: b"5;" + b"e" * 50_000 + b"\r\nhello\r\n0\r\n\r\n",
            lambda: b"1\r\n{\r\n" * 5000,
            lambda: b"0\r\n" + b"T: 1\r\n" * 20_000 + b"\r\n",
        )
        raw = rng.choice(broken)()
        coding = rng.choice(
            (
                coding,
                coding,
                b"Transfer-Encoding: gzip, chunked",
                b"Transfer-Encoding: chunked, chunked",
                b"Transfer-Encoding: chunked, identity",
                b"Transfer-Encoding: xchunked",
                b"Transfer-Encoding : chunked",
                b"Transfer-Encoding:\x0bchunked",
                b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                b"Transfer-Encoding: chunked\r\nContent-Length: 5",
            )
        )
    return _one(request(rng.choice(PATHS), raw, key, coding, length=b"none"), answered=whole)


def _pipelined(rng: Random, key: bytes) -> Case:
    parts = []
    for _ in range(rng.choice((2, 3, 8, 40))):
        pick = rng.random()
        if pick < 0.5:
            parts.append(good(key))
        elif pick < 0.7:
            parts.append(request(rng.choice(PAGES), b"", key, method=b"GET"))
        else:
            parts += make(rng.randrange(2**40), key.decode()).pieces
    return _one(b"".join(parts), answered=False)


def _many(rng: Random, key: bytes) -> Case:
    """The same small request again and again, in one packet."""
    field = rng.choice((b"Connection: Upgrade\r\nUpgrade: h2c", b"Expect: 100-continue", b"X: 1"))
    one = rng.choice(
        (
            request(rng.choice((*PATHS, *PAGES)), b"{}", key, field),
            request("/health", b"", key, field, method=rng.choice(METHODS)),
            b"GET /health HTTP/1.1\r\n" + field + b"\r\n\r\n",
            b"\r\n",
        )
    )
    return _one(one * rng.choice((100, 600)), answered=len(one) > 2)


def _sliced(rng: Random, key: bytes) -> Case:
    path, body = _body(rng)
    raw = request(path, body, key)
    cuts = sorted(rng.randrange(len(raw)) for _ in range(rng.choice((1, 2, 10))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return Case("", tuple(pieces), answered=True)


def _noise(rng: Random, _key: bytes) -> Case:
    noises: tuple[Callable[[], bytes], ...] = (
        lambda: rng.randbytes(rng.choice((1, 50, 5000, 100_000))),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(400),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
        lambda: b"\x05\x01\x00",
        lambda: b"SSH-2.0-x\r\n",
        lambda: b"\r\n" * rng.choice((1, 100, 50_000)),
        lambda: b"\n" * 1000,
        lambda: b"GET",
        lambda: b"GET / HTTP/1.1\r\n" + b"a" * 2_000_000,
        lambda: b"\x00" * 10_000,
        lambda: b"QUIT\r\n",
        lambda: b"",
    )
    return _one(rng.choice(noises)(), answered=False)


def _gone(rng: Random, key: bytes) -> Case:
    """The client leaves in the middle, or at once when it has asked."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 500}], "stream": True}
    raw = rng.choice((good(key), request(PATHS[0], json.dumps(body).encode(), key)))
    raw *= rng.choice((1, 1, 5))
    stop = rng.choice((len(raw), len(raw), rng.randrange(len(raw))))
    return _one(raw[:stop], answered=False, ends=rng.choice(("half", "reset", "begun")))


def _pages(rng: Random, key: bytes) -> Case:
    path = rng.choice((*PAGES, *PATHS)).encode() + rng.choice((b"", b"?a=%ff&b", b"/", b"//"))
    method = rng.choice((b"GET", b"GET", b"POST", *METHODS))
    body = rng.choice((b"", b"x", b"{}", b"x" * 70_000))
    return _one(request(path, body, key, rng.choice(_FIELDS), method=method), answered=True)


def _forms(rng: Random, key: bytes) -> Case:
    raw = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nfuzzed\r\n'
    raw += b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    raw += rng.randbytes(rng.choice((0, 100, 20_000))) + b"\r\n--b--\r\n"
    kind = rng.choice((b"b", b'"b"', b"", b"x" * 100, b"\xff", b"b; charset=utf-8", b'"b'))
    if rng.random() < 0.7:
        raw = _scratched(rng, raw, rng.randrange(1, 6))
    path = rng.choice(("/v1/audio/transcriptions", "/v1/audio/translations", PATHS[0]))
    return _one(
        request(path, raw, key, kind=b"multipart/form-data; boundary=" + kind), answered=False
    )


def _strangers(rng: Random, key: bytes) -> Case:
    """Who has no key, or nearly the right one."""
    wrong = rng.choice((b"", b"x", key[:-1], key + b"x", b"\xff" * 20, b"a" * 70_000, key.upper()))
    raw = good(wrong).replace(b"Bearer", rng.choice((b"Bearer", b"bearer", b"Basic", b"")))
    return _one(raw, answered=False)


_KINDS: tuple[Callable[[Random, bytes], Case], ...] = (
    *(_json_values, _json_bytes, _json_shapes, _head_bytes, _head_fields, _first_line, _lengths),
    *(_chunked, _pipelined, _many, _sliced, _noise, _gone, _pages, _forms, _strangers),
)
