from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.util.hostlist import expand


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("", []),
        ("c1", ["c1"]),
        ("c[1-3]", ["c1", "c2", "c3"]),
        ("nid[001-003,010]", ["nid001", "nid002", "nid003", "nid010"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("a[1-2]b[01-02]", ["a1b01", "a1b02", "a2b01", "a2b02"]),
        ("n[1-2],login-1,x[7]", ["n1", "n2", "login-1", "x7"]),
        ("n[1-2],n1", ["n1", "n2", "n1"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("r[1-2]n[1-2].hpc.example", [f"r{r}n{n}.hpc.example" for r in (1, 2) for n in (1, 2)]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_expand(hostlist: str, names: list[str]) -> None:
    assert expand(hostlist) == names


@pytest.mark.parametrize(
    ("hostlist", "complaint"),
    [
        ("c[1-3", "a '[' without its ']'"),
        ("c1]", "a ']' without its '[' at character 3"),
        ("a[b[1-2],c]", "a bracket in a bracket at character 4"),
        ("c[3-1]", "'3-1' runs backwards"),
        ("c[]", "'' is not a number or a range"),
        ("c[a-b]", "'a-b' is not a number or a range"),
        ("c[1-2-3]", "'1-2-3' is not a number or a range"),
        ("c[1-9999999999]", "more than 1000000 hosts"),
        ("c[1-1000][1-1000][1-1000]", "more than 1000000 hosts"),
    ],
)
def test_malformed(hostlist: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="hostlist") as caught:
        expand(hostlist)
    assert complaint in str(caught.value)
    assert repr(hostlist) in str(caught.value)


def _number(width: int, value: int) -> str:
    return f"{value:0{width}d}"


_words = st.text("abcxyz-", min_size=1, max_size=4).filter(lambda text: not text.startswith("-"))
_single = st.builds(_number, st.integers(1, 4), st.integers(0, 2000))
_span = st.builds(
    lambda width, first, more: f"{_number(width, first)}-{_number(width, first + more)}",
    st.integers(1, 4),
    st.integers(0, 1200),
    st.integers(0, 12),
)
_bracket = st.lists(st.one_of(_single, _span), min_size=1, max_size=3).map(
    lambda items: f"[{','.join(items)}]"
)
_name = st.builds(
    lambda parts, tail: "".join(word + bracket for word, bracket in parts) + tail,
    st.lists(st.tuples(_words, _bracket), min_size=1, max_size=2),
    st.just(""),
)
_hostlists = st.lists(st.one_of(_name, _words), min_size=1, max_size=4).map(",".join)


@given(_hostlists)
def test_every_name_is_single(hostlist: str) -> None:
    for name in expand(hostlist):
        assert name
        assert expand(name) == [name]


@pytest.fixture(scope="module")
def scontrol_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """scontrol folds and unfolds names without a controller, but wants a configuration."""
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nNodeName=c1\nPartitionName=p Nodes=ALL\n"
    )
    return {**os.environ, "SLURM_CONF": str(conf)}


@settings(max_examples=60, deadline=None)
@given(hostlist=_hostlists)
def test_like_scontrol(scontrol_environ: dict[str, str], hostlist: str) -> None:
    shown = subprocess.run(
        ["scontrol", "show", "hostnames", hostlist],
        env=scontrol_environ,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert expand(hostlist) == shown.stdout.split()
