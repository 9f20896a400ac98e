"""YAML with lines: YAML 1.2 scalars, anchors, duplicate keys, errors with their line."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from exaslurm.util.yaml_lines import (
    Document,
    key_path,
    key_text,
    nearest,
    read_document,
    text_of,
)


def parse(text: str) -> Document:
    return read_document(text, "f.yaml")


def test_words_and_times_stay_text() -> None:
    data = parse("a: no\nb: 04:00:00\nc: yes\nd: 2026-11-29\ne: 1_000\nf: on\n").data
    assert data == {
        "a": "no",
        "b": "04:00:00",
        "c": "yes",
        "d": "2026-11-29",
        "e": "1_000",
        "f": "on",
    }


def test_scalars_of_yaml_1_2() -> None:
    data = parse("[1, -2, 0x10, 0o17, 1.5, 1e3, .5, -.inf, true, False, null, ~, '3']").data
    assert data == [1, -2, 16, 15, 1.5, 1000.0, 0.5, -math.inf, True, False, None, None, "3"]
    assert math.isnan(parse("[.nan]").data[0])


def test_numbers_remember_how_they_were_written() -> None:
    data = parse("version: 24.10\naccount: 007\nhex: 0x1F\nflag: true\nword: x\n").data
    assert [text_of(value) for value in data.values()] == ["24.10", "007", "0x1F", "true", "x"]
    assert data["account"] == 7


def test_places_of_values() -> None:
    document = parse("a: 1\nb:\n  - c: 2\n    d: 3\n")
    assert document.place(("b", 0, "d")) == "f.yaml:4"
    assert document.place(("b", 0)) == "f.yaml:3"
    # What is missing is reported where it would have to stand.
    assert document.place(("b", 0, "missing", "x")) == "f.yaml:3"
    assert document.place(("nothing",)) == "f.yaml:1"


def test_anchors_aliases_and_merge_keys() -> None:
    text = "base: &b {x: 1, y: 2}\none:\n  <<: *b\n  y: 3\ntwo:\n  <<: [*b, {z: 9}]\nthree: *b\n"
    document = parse(text)
    assert document.problems == []
    assert document.data["one"] == {"x": 1, "y": 3}
    assert document.data["two"] == {"x": 1, "y": 2, "z": 9}
    assert document.data["three"] == {"x": 1, "y": 2}
    assert document.place(("one", "y")) == "f.yaml:4"
    assert document.place(("one", "x")) == "f.yaml:1"


def test_a_key_given_twice_is_a_problem_with_both_lines() -> None:
    problems = parse("a: 1\nb: {c: 1, c: 2}\na: 2\n").problems
    assert [str(problem) for problem in problems] == [
        "f.yaml:2: b.c: already given in line 2",
        "f.yaml:3: a: already given in line 1",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2\n", "f.yaml:2: not valid YAML"),
        ("a: b: c\n", "f.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n\tb: 2\n", "indent with spaces, not tabs"),
        ("a: *nowhere\n", "undefined alias"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- 1\n", "f.yaml:1: expected a mapping"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML: expected a single document"),
        ("a: !!python/object:os.system x\n", "f.yaml:1: a: tags such as"),
        ("a: &a [*a]\n", "an alias inside its own anchor"),
        ("? [1]\n: 2\n", "a key must be a single word"),
        ("<<: 3\n", "<< needs a mapping"),
        ("a: !!int x\n", "f.yaml:1: a: not a int (got 'x')"),
        ("a: 1\nb: \x07\n", r"f.yaml:2: not valid YAML: the character '\x07' is not allowed"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read(text: str, said: str) -> None:
    problems = parse(text).problems
    assert len(problems) == 1
    assert said in str(problems[0])


def test_a_small_text_cannot_stand_for_a_huge_document() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for above, below in zip("bcdefg", "abcdef", strict=True):
        text += f"{above}: &{above} [{', '.join([f'*{below}'] * 10)}]\n"
    problems = parse(text).problems
    assert [problem.message for problem in problems] == [
        "too many values, or an alias inside its own anchor"
    ]


def test_one_document_over_another() -> None:
    base = read_document("a: {x: 1, y: [1, 2]}\nb: 1\n", "base.yaml")
    merged = read_document("\na: {y: [3], z: 4}\n", "top.yaml").over(base)
    assert merged.data == {"a": {"x": 1, "y": [3], "z": 4}, "b": 1}
    assert merged.place(("a", "x")) == "base.yaml:1"
    assert merged.place(("a", "y", 0)) == "top.yaml:2"
    assert merged.place(("b",)) == "base.yaml:2"
    # The second item of the base's list is gone, and so is its place.
    assert ("a", "y", 1) not in merged.places


@pytest.mark.parametrize("text", ["a", "models[0].name", "a.b[3][4].c", "env.A_B"])
def test_keys_as_text_and_back(text: str) -> None:
    assert key_text(key_path(text)) == text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("replica", "; did you mean replicas?"),
        ("REPLICAS", "; did you mean replicas?"),
        ("zzz", "; valid: name, replicas"),
    ],
)
def test_nearest_name(name: str, hint: str) -> None:
    assert nearest(name, ["replicas", "name"]) == hint
    assert nearest(name, []) == ""


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefg")),
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 8)),
    ],
    ids=["aliases", "merges"],
)
def test_a_few_lines_that_stand_for_very_many_values(text: str) -> None:
    document = parse(text)
    assert document.data is None
    (problem,) = document.problems
    assert "too many values" in problem.message
