"""One value is set; everything else in the text stays, and the result is what was meant."""

from __future__ import annotations

import pytest

from exaslurm.util.yaml_edit import with_value
from exaslurm.util.yaml_lines import read_document


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a: 1\nb: 2\n", 'a: "x"\nb: 2\n'),
        ("a: 1 # why\nb: 2\n", 'a: "x" # why\nb: 2\n'),
        ("a:\nb: 2\n", 'a: "x"\nb: 2\n'),
        ('"a": 1\nb: 2\n', '"a": "x"\nb: 2\n'),
        ("a : 1\n", 'a : "x"\n'),
        ("a: one\n  two\nb: 2\n", 'a: "x"\nb: 2\n'),
        ("a: |\n  one\nb: 2\n", 'a: "x"\nb: 2\n'),
        ("a: [1, 2]\nb: 2\n", 'a: "x"\nb: 2\n'),
        ("c: &c 1\na: *c\n", 'c: &c 1\na: "x"\n'),
        ("b: {a: 1}\n", 'b: {a: 1}\na: "x"\n'),
        ("b: 2", 'b: 2\na: "x"\n'),
        ("b: 2 # why", 'b: 2 # why\na: "x"\n'),
        ("b:\n  - a: 1\n# end\n", 'b:\n  - a: 1\n# end\na: "x"\n'),
        ("  b: 2\n", '  b: 2\n  a: "x"\n'),
        ("---\nb: 2\n...\n", '---\nb: 2\na: "x"\n...\n'),
        ("{b: 2}\n", '{a: "x", b: 2}\n'),
        ("{}", '{a: "x"}'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', '{\n  "a": "x",\n  "b": 2\n}\n'),
        ("\ufeffb: 2\r\na: 1\r\n", '\ufeffb: 2\r\na: "x"\r\n'),
    ],
)
def test_a_value_is_set_where_its_key_stands(text: str, result: str) -> None:
    assert with_value(text, "a", '"x"') == result
    document = read_document(result, "f.yaml")
    assert document.problems == []
    assert document.data["a"] == "x"


@pytest.mark.parametrize("text", ["", "- a\n", "a\n", "a: [\n", "# nothing\n"])
def test_what_is_no_mapping_stays_as_it_is(text: str) -> None:
    assert with_value(text, "a", '"x"') == text
