"""Types of single values: what may reach a file name, an #SBATCH line or a shell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from exaslurm.util import fields
from exaslurm.util.fields import directive_pair, time_limit_s


def accepts(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        (
            fields.Name,
            ["a", "smollm2-135m", "Llama_3.1", "x" * 63],
            ["", "-a", ".a", "a/b", "a b", "a:b", "x" * 64, "a\n", "ä", "../x"],
        ),
        (
            fields.Word,
            ["ab123_g", "gpu&hbm80g", "[rack1|rack2]*2", "a,b", "user@host"],
            ["", "a b", "a\nb", 'a"b', "a'b", "a#b", "a\\b", "$x", "`x`", "a;b;$(x)", "a\n"],
        ),
        (
            fields.TimeLimit,
            ["60", "60:30", "04:00:00", "1-0", "1-12:30", "1-12:30:10", "UNLIMITED", "infinite"],
            ["", "1h", "-1", "1:2:3:4", "1-2-3", "1-1:1:1:1", "04:00:00\n"],
        ),
        (fields.Switches, ["1", "2@60", "1@0-01:00:00"], ["", "@60", "x", "1@x"]),
        (
            fields.Directive,
            ["--wckey=a b", "exclusive", "--network=disable_rdzv_get"],
            ["--", "-A x", "--Wckey=a", "--x=a\nb", "--wckey=", "#x"],
        ),
        (fields.DirectiveName, ["mem", "--no-kill"], ["mem=1", "-m", "a b", ""]),
        (
            fields.PathText,
            # Which variables there are is the site's to say: see site.paths.
            ["/a/b", "~/x", "$HOME/x", "${HOME}/x", "/scratch/$USER", "$SCRATCH/x"],
            ["a/b", "", "/a\nb"],
        ),
        (fields.Text, ["a b", "module load cuda", 7], ["", "  ", "a\nb", "a\x1b[0m", "a\tb"]),
        (fields.Count, [1, 7], [0, -1, "1", True, 1.5, None]),
        (fields.Natural, [0, 7], [-1, "0", False]),
        (fields.Positive, [1, 0.5], [0, -1.0, math.inf, math.nan, "1", True]),
        (fields.Flag, [True, False, "yes", "No", "on"], [1, 0, "y", "maybe", None]),
        (fields.Environment, [{"A_1": "x", "B": 1, "C": True}], [{"1A": "x"}, {"A B": "x"}, []]),
    ],
)
def test_what_is_taken(kind: Any, good: list[object], wrong: list[object]) -> None:
    assert [value for value in good if not accepts(kind, value)] == []
    assert [value for value in wrong if accepts(kind, value)] == []


@given(st.text())
def test_a_word_is_safe_on_a_directive_line(text: str) -> None:
    if accepts(fields.Word, text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set(" \"'\\#$`;<>") - {";"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 3600),
        ("60:30", 3630),
        ("04:00:00", 4 * 3600),
        ("1-0", 86400),
        ("1-12:30", 86400 + 12 * 3600 + 1800),
        ("1-12:30:10", 86400 + 12 * 3600 + 1810),
        ("0", math.inf),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
    ],
)
def test_seconds_of_a_time_limit(text: str, seconds: float) -> None:
    assert time_limit_s(text) == seconds


def test_directives_as_pairs() -> None:
    assert directive_pair("--wckey=a=b") == ("wckey", "a=b")
    assert directive_pair("exclusive") == ("exclusive", None)
