"""Tokens for one replica: what is accepted, and why anything else is not."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.keys.token import MOST_S, PREFIX, SKEW_S, Claims, TokenSigner

NOW_S = 1_800_000_000.0
CLAIMS = Claims(
    key_name="alice", replica="c000-r0000", models=("chat:base",), expires_at_s=int(NOW_S) + 60
)
SIGNER = TokenSigner("inner")


def check(token: str, *, replica: str = "c000-r0000", now_s: float = NOW_S) -> Claims | str:
    return SIGNER.verify(token, replica=replica, now_s=now_s)


def test_a_token_comes_back_as_its_claims() -> None:
    token = SIGNER.sign(CLAIMS)
    assert token.startswith(PREFIX)
    assert check(token) == CLAIMS
    assert token != SIGNER.sign(CLAIMS)  # no two are the same
    assert "inner" not in token


def test_whose_it_is() -> None:
    token = TokenSigner("another deployment's").sign(CLAIMS)
    assert check(token) == "its signature is wrong"
    assert check(SIGNER.sign(CLAIMS), replica="c000-r0001") == "it is for another replica"


def test_its_end() -> None:
    token = SIGNER.sign(CLAIMS)
    assert check(token, now_s=NOW_S + 60 + SKEW_S) == CLAIMS  # clocks differ
    assert check(token, now_s=NOW_S + 60 + SKEW_S + 1) == "it has expired"
    assert check(token, now_s=NOW_S - MOST_S) == "it is to live too long"


@pytest.mark.parametrize(
    "token",
    ["", "xt1.", "xt1..", "xt1.a.b", "xt2.a.b", "inner", "xt1." + "A" * 9000, "xt1.é.é", "a.b.c"],
)
def test_what_is_no_token(token: str) -> None:
    assert isinstance(check(token), str)


def test_what_was_signed_must_make_sense() -> None:
    for payload in (b"", b"[]", b"{}", b'{"k":1,"r":"c000-r0000","m":[],"e":1}', b"\xff",
                    b'{"k":"a","r":"c000-r0000","m":[1],"e":1800000000}',
                    b'{"k":"a","r":"c000-r0000","m":[],"e":true}', b"[" * 4000):  # fmt: skip
        body = PREFIX + base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
        mac = base64.urlsafe_b64encode(SIGNER._mac(body)).rstrip(b"=").decode()
        assert check(f"{body}.{mac}") == "it is damaged"


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_other_spelling_is_accepted(place: int, change: int) -> None:
    token = SIGNER.sign(CLAIMS)
    place %= len(token)
    other = token[:place] + chr((ord(token[place]) + change) % 256) + token[place + 1 :]
    assert check(other) != CLAIMS or other == token


def test_more_time_cannot_be_had_by_editing() -> None:
    version, payload, mac = SIGNER.sign(CLAIMS).split(".")
    data = json.loads(base64.urlsafe_b64decode(payload + "=="))
    data["e"] += 3600
    longer = base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()
    assert check(f"{version}.{longer}.{mac}") == "its signature is wrong"


def test_the_key_of_a_token_is_not_the_key() -> None:
    assert SIGNER._key != b"inner"
    assert TokenSigner("inner")._key == SIGNER._key


def test_it_needs_the_standard_library_only() -> None:
    code = "import exaslurm.keys.token, exaslurm.engines.middleware"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.'); {code}"]
    subprocess.run(command, check=True, timeout=30)
