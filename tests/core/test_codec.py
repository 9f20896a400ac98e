"""Frozen types to JSON and back, strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from exaslurm.core.cell import CellRecord, DesiredState, ReplicaRecord
from exaslurm.core.codec import content_hash, dumps, from_jsonable, loads
from exaslurm.errors import StateError


@dataclass(frozen=True, kw_only=True)
class Inner:
    colour: Literal["red", "blue"]
    ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    count: int
    on: bool = False
    inner: Inner | None = None
    pairs: tuple[tuple[str, str | None], ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)


FULL = Outer(
    name="a",
    count=3,
    on=True,
    inner=Inner(colour="red", ratio=0.5),
    pairs=(("x", None), ("y", "z")),
    by_name={"k": Inner(colour="blue")},
)


def test_there_and_back() -> None:
    assert loads(Outer, dumps(FULL), where="it") == FULL
    assert loads(Outer, dumps(FULL, indent=1), where="it") == FULL


def test_a_registry_record_there_and_back() -> None:
    replica = ReplicaRecord(
        id="c000-r0000", model="m", shard="s", served_names=("m", "m:s"), url="http://n:1",
        node="n", ready=True, max_model_len=None, labels={"switch": "s1"},
    )  # fmt: skip
    record = CellRecord(
        deployment="d", cell="c000", generation=1, plan_hash="0", job_id="1", seq=2, lease_s=30.0,
        state_url="http://h:2", replicas=(replica,),
    )  # fmt: skip
    assert loads(CellRecord, dumps(record), where="it") == record


def test_equal_values_have_equal_text_and_hash() -> None:
    one = Outer(name="a", count=1, by_name={"x": Inner(colour="red"), "a": Inner(colour="red")})
    two = Outer(name="a", count=1, by_name={"a": Inner(colour="red"), "x": Inner(colour="red")})
    assert dumps(one) == dumps(two)
    assert content_hash(one) == content_hash(two)
    assert content_hash(one) != content_hash(FULL)


def test_a_whole_number_is_a_float_where_a_float_is_wanted() -> None:
    inner = from_jsonable(Inner, {"colour": "red", "ratio": 2}, where="it")
    assert isinstance(inner.ratio, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "it.name: expected str, found 1"),
        ({"count": "3"}, "it.count: expected int, found '3'"),
        ({"count": True}, "it.count: expected int, found True"),
        ({"on": 1}, "it.on: expected bool, found 1"),
        ({"count": 3.5}, "it.count: expected int, found 3.5"),
        ({"new": 1}, "it: unknown key 'new'"),
        ({"inner": {"colour": "green"}}, "it.inner.colour: 'green' is none of ['red', 'blue']"),
        ({"inner": {}}, "it.inner: key 'colour' is missing"),
        ({"inner": []}, "it.inner: expected an object, found list"),
        ({"pairs": {}}, "it.pairs: expected a list, found dict"),
        ({"pairs": [["x"]]}, "it.pairs[0]: expected 2 items, found 1"),
        ({"pairs": [["x", 1]]}, "it.pairs[0][1]: expected str, found 1"),
        ({"by_name": []}, "it.by_name: expected an object, found list"),
        ({"by_name": {"k": {"colour": 1}}}, "it.by_name.k.colour: 1 is none of"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change: dict[str, object], message: str) -> None:
    data = {"name": "a", "count": 1, **change}
    with pytest.raises(StateError) as raised:
        from_jsonable(Outer, data, where="it")
    assert message in str(raised.value)


def test_what_is_not_json_is_named_by_its_place() -> None:
    with pytest.raises(StateError, match=r"record\.json: not JSON"):
        loads(Outer, b"{", where="record.json")


def test_not_a_number_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(Inner(colour="red", ratio=float("nan")))


def test_defaults_may_be_absent() -> None:
    state = loads(DesiredState, json.dumps({"version": 1, "ray": None, "engines": []}), where="it")
    assert state.stop is False


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity", "1" + "0" * 400])
def test_numbers_that_json_has_not(number: str) -> None:
    with pytest.raises(StateError, match="no finite number"):
        loads(Inner, f'{{"colour": "red", "ratio": {number}}}', where="x")
