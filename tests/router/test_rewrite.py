"""Only the bytes of the model's name change."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.router.parse import peek
from exaslurm.router.rewrite import replace_model

FORM = b'multipart/form-data; boundary="a-b c"'


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"model":"a"}', '{"model":"NEW"}'),
        ('{"model" : "a" , "x":1}', '{"model" : "NEW" , "x":1}'),
        (
            ' {\n"x": {"model":"a"},\t"model":\r"a"\n} ',
            ' {\n"x": {"model":"a"},\t"model":\r"NEW"\n} ',
        ),
        (
            '{"x":["model","a"],"y":"model","model":"a"}',
            '{"x":["model","a"],"y":"model","model":"NEW"}',
        ),
        (r'{"x":"\"model\":\"a\"","model":"a"}', r'{"x":"\"model\":\"a\"","model":"NEW"}'),
        (r'{"x":"\\","model":"a\\"}', r'{"x":"\\","model":"NEW"}'),
        (r'{"x":"\\\"","model":"a\""}', r'{"x":"\\\"","model":"NEW"}'),
        (r'{"mod\u0065l":"a"}', r'{"mod\u0065l":"NEW"}'),
        (r'{"mod\\u0065l":"a"}', r'{"mod\\u0065l":"a"}'),
        ('{"model":"a","model":"b"}', '{"model":"NEW","model":"NEW"}'),
        ('{"model":null,"x":2}', '{"model":null,"x":2}'),
        ('{"x":{"model":"a"}}', '{"x":{"model":"a"}}'),
        (
            '{"x":-1.50e3,"y":true,"model":"a","z":1.0}',
            '{"x":-1.50e3,"y":true,"model":"NEW","z":1.0}',
        ),
        ('{"x":NaN,"y":"\\ud800","model":"a"}', '{"x":NaN,"y":"\\ud800","model":"NEW"}'),
        ('{"x":[{"y":[{}]},"}]"],"model":"ä"}', '{"x":[{"y":[{}]},"}]"],"model":"NEW"}'),
        ('\ufeff{"model":"a"}', '\ufeff{"model":"NEW"}'),
        ("{}", "{}"),
    ],
)
def test_in_json(raw: str, expected: str) -> None:
    assert replace_model(raw.encode(), "NEW") == expected.encode()
    # peek and rewrite speak of the same field
    if replace_model(raw.encode(), "NEW") != raw.encode():
        assert peek("/v1/completions", b"application/json", expected.encode()).model == "NEW"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("other", ["plain", "model 😀"])
def test_in_other_encodings_that_json_allows(encoding: str, other: str) -> None:
    raw = json.dumps({"model": "a", "x": other}, ensure_ascii=False).encode(encoding)
    changed = replace_model(raw, 'n"ew')
    assert json.loads(changed) == {"model": 'n"ew', "x": other}
    assert json.detect_encoding(changed) == json.detect_encoding(raw)
    assert peek("/v1/completions", b"application/json", changed).model == 'n"ew'


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["model", '"model":"x"', "\\", '\\"', "{", "]", "}"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.just("model"), inner, max_size=4)
    ),
    max_leaves=12,
)
bodies = st.dictionaries(st.text(), json_values, max_size=6)
layouts = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")])


def common(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@settings(deadline=None)
@given(bodies, st.text(), st.text(), layouts, st.booleans(), st.randoms())
def test_all_but_the_model_stays(
    body: dict[str, Any], old: str, new: str, layout: tuple[str, str], ascii_only: bool, rng: Any
) -> None:
    items = [*body.items(), ("model", old)]
    rng.shuffle(items)
    body = dict(items) | {"model": old}
    text = json.dumps(body, separators=layout, ensure_ascii=ascii_only)
    raw = text.encode("utf-8", "surrogatepass")
    changed = replace_model(raw, new)
    assert json.loads(changed) == {**body, "model": new}
    # The bytes before and behind the value are the old ones, and the value is as written here.
    now = json.dumps(new, ensure_ascii=False).encode()
    same = common(raw, changed)
    cut = len(changed) - common(raw[::-1], changed[::-1])
    assert raw == changed or changed[same:cut] in now
    assert replace_model(raw, new, named=old) == changed


@settings(deadline=None)
@given(st.binary() | st.text('{}[]":,\\model \n', max_size=60).map(str.encode))
def test_nonsense_ends(raw: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError):  # of what only looks like UTF-16
        replace_model(raw, "NEW")
    with contextlib.suppress(ValueError):
        replace_model(raw, "NEW", FORM)


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = [
        b"--a-b c\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + body
        for head, body in parts
    ]
    return b"\r\n".join([*lines, b"--a-b c--\r\n"])


def test_in_a_form() -> None:
    trap = b'--other\r\nContent-Disposition: form-data; name="model"\r\n\r\nx\r\n--other--'
    parts = [
        ('name="file"; filename="model"\r\nContent-Type: audio/wav', trap + b"\x00\xff\r\n"),
        ('name="model"', b"old"),
        ("name=model", b""),
        ('name="prompt"', b"model"),
        ('name="stream"', b"true"),
    ]
    raw = form(*parts)
    parts[1] = (parts[1][0], "nåme".encode())
    parts[2] = (parts[2][0], "nåme".encode())
    changed = replace_model(raw, "nåme", FORM)
    assert changed == form(*parts)
    seen = peek("/v1/audio/transcriptions", FORM, changed)
    assert (seen.model, seen.stream, seen.data) == ("nåme", True, None)
    assert peek("/v1/audio/transcriptions", FORM, form(parts[0])).model is None


def test_a_deep_body_is_no_trouble() -> None:
    raw = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"model":"a"}'
    assert replace_model(raw, "b").endswith(b'],"model":"b"}')
