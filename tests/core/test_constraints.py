"""The language of conditions: what it means, and what it says of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.core.constraints import ConstraintError, Fact, Value, parse

FACTS = {
    "ib_gbps": Fact("number", "rate", "Gbps"),
    "mem_gib": Fact("number", "memory", "GiB"),
    "storage_read_ms": Fact("number", "time", "ms"),
    "gpus": Fact("number", "count"),
    "kind": Fact("text", "kind"),
    "numa_local": Fact("flag", "near"),
    "feature": Fact("names", "features"),
    "switch": Fact("names", "switches"),
}
NODE: dict[str, Value] = {
    "ib_gbps": 200.0,
    "mem_gib": 512.0,
    "gpus": 4.0,
    "kind": "gpu",
    "numa_local": True,
    "feature": frozenset({"nvme", "a100-80"}),
    "switch": frozenset({"spine", "leaf1"}),
}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ib_gbps >= 200", True),
        ("ib_gbps > 200", False),
        ("ib_gbps == 200 and gpus != 3", True),
        ("ib_gbps >= 0.2 Tbps", True),
        ("ib_gbps >= 200Gbps and ib_gbps <= 200000 Mbps", True),
        ("ib_gbps < 200Gb/s", False),
        ("mem_gib >= 0.5 TiB", True),
        ("mem_gib >= 512 GB", True),  # 477 GiB
        ("mem_gib > 600GB", False),
        ("gpus in [2, 4]", True),
        ("gpus not in [2, 4]", False),
        ("kind == gpu", True),
        ("kind == 'gpu'", True),
        ('kind != "gpu"', False),
        ("kind in [cpu, gpu]", True),
        ("numa_local", True),
        ("not numa_local", False),
        ("numa_local == false", False),
        ("feature('nvme')", True),
        ("feature == nvme", True),
        ("feature == a100-80", True),
        ("feature != nvme", False),
        ("feature in [x, nvme]", True),
        ("switch in [leaf1, leaf2]", True),
        ("switch not in [leaf2, leaf3]", True),
        ("switch == spine", True),
        ("numa_local AND NOT (kind == cpu OR gpus < 4)", True),
        # and binds closer than or
        ("numa_local or kind == cpu and kind == cpu", True),
        ("(numa_local or kind == cpu) and kind == cpu", False),
        ("not kind == cpu and numa_local", True),
        # what is not known is neither true nor false
        ("storage_read_ms <= 2", None),
        ("not storage_read_ms <= 2", None),
        ("storage_read_ms <= 2 or numa_local", True),
        ("storage_read_ms <= 2 and kind == cpu", False),
        ("storage_read_ms <= 2 and numa_local", None),
    ],
)
def test_verdicts(text: str, verdict: bool | None) -> None:
    assert parse(text, FACTS).verdict(NODE) is verdict


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ib_gbps >= 400", "ib_gbps >= 400 (ib_gbps is 200 Gbps)"),
        ("numa_local and ib_gbps >= 400 and gpus > 8",
         "ib_gbps >= 400 (ib_gbps is 200 Gbps); gpus > 8 (gpus is 4)"),
        ("kind == cpu or gpus > 8", "kind == cpu or gpus > 8 (kind is gpu, gpus is 4)"),
        ("not (feature == nvme)", "not (feature == nvme) (feature is a100-80 + nvme)"),
        ("storage_read_ms <= 2 ms", "storage_read_ms <= 2 ms (storage_read_ms is not known there)"),
        ("not numa_local", "not numa_local (numa_local is true)"),
    ],
)  # fmt: skip
def test_why_not(text: str, why: str) -> None:
    assert parse(text, FACTS).why_not(NODE) == why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ib_gps >= 1", "column 1: there is no fact 'ib_gps'; did you mean ib_gbps?"),
        ("numa_local and IB_GBPS > 1",
         "column 16: there is no fact 'IB_GBPS'; did you mean ib_gbps?"),
        ("ib_gbps = 3", "column 9: unexpected '=': write =="),
        ("numa_local && gpus > 1", "column 12: unexpected '&': write and"),
        ("ib_gbps", "column 8: ib_gbps is not true or false by itself: write ib_gbps >= 1"),
        ("100 <= ib_gbps", "column 1: the fact comes first: ib_gbps >= 100"),
        ("2 and gpus", "column 1: a fact comes first, not 2"),
        ("kind < 3", "column 6: kind is no number: use ==, !=, in or not in"),
        ("ib_gbps >= fast", "column 12: ib_gbps is a number, not fast"),
        ("ib_gbps >= 2 GiB",
         "column 14: ib_gbps is a rate in Gbps, and GiB is not"),
        ("gpus >= 2 GiB", "column 11: gpus is a plain number, without GiB"),
        ("ib_gbps >=", "column 11: a value for ib_gbps is missing"),
        ("", "column 1: a fact is missing"),
        ("numa_local and", "column 15: a fact is missing"),
        ("(numa_local", "column 12: ) is missing for the ( in column 1"),
        ("gpus in [1, 2", "column 14: ] is missing for the [ in column 9"),
        ("switch in leaf1", "column 11: a list is missing, such as switch in [a, b]"),
        ("feature('x", "column 9: the quote ' is not closed"),
        ("kind('x')", "column 5: kind takes no brackets: compare it"),
        ("numa_local == 1", "column 15: numa_local is true or false, not 1"),
        ("numa_local gpus", "column 12: unexpected 'gpus': 'and' or 'or' comes before it"),
        ("kind not x", "column 10: in is missing after not"),
    ],
)  # fmt: skip
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        parse(text, FACTS)
    assert str(caught.value) == message


def test_a_name_like_no_other_is_told_all_of_them() -> None:
    with pytest.raises(ConstraintError) as caught:
        parse("zzz", FACTS)
    assert str(caught.value).endswith(f"there are: {', '.join(sorted(FACTS))}")


def test_no_condition_is_too_deep() -> None:
    with pytest.raises(ConstraintError, match="too long: at most 200"):
        parse("(" * 5000 + "numa_local" + ")" * 5000, FACTS)
    assert parse("not " * 100 + "numa_local", FACTS).verdict(NODE) is True


words = st.sampled_from(
    ["ib_gbps", "kind", "feature", "and", "or", "not", "in", "(", ")", "[", "]", ",", "==", "<",
     ">=", "3", "4 GiB", "'x'", "'", "gpu", "=", "__import__('os')", "\0", "é"]
)  # fmt: skip


@given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    try:
        condition = parse(text, FACTS)
    except ConstraintError as error:
        assert str(error).startswith("column ")  # noqa: PT017 - both outcomes are right
        return
    verdict = condition.verdict(NODE)
    if verdict is not True:
        assert condition.why_not(NODE)


def test_no_number_is_endless() -> None:
    with pytest.raises(ConstraintError, match="column 12: no ib_gbps has so many digits"):
        parse("ib_gbps >= " + "9" * 400, FACTS)
