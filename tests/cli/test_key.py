"""The keys of a deployment from the command line; no router is needed for that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from exaslurm.cli.verbs.key import DurationType
from exaslurm.keys.clients import ClientKeys, list_keys
from exaslurm.rundir import RunDir

Run = Callable[..., Any]


@pytest.fixture
def run_dir(exaslurm: Run, tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "state" / "exaslurm" / "hello")
    made.make()
    return made


def test_a_key_with_limits(exaslurm: Run, run_dir: RunDir) -> None:
    limits = ["--requests-per-min", 60, "--tokens-per-min", 9000, "--concurrency", 4]
    more = ["--priority", -1, "--models", "a,b:x", "--model", "c", "--expires", "30d"]
    done = exaslurm("key", "add", "hello", "ada", *limits, *more)
    assert done.code == 0, done.err
    keys = ClientKeys(run_dir)
    keys.refresh()
    info = keys.check_key(done.out.strip())
    assert info is not None
    assert (info.requests_per_min, info.tokens_per_min, info.concurrency) == (60, 9000, 4)
    assert (info.priority, info.models) == (-1, ("a", "b:x", "c"))
    assert info.expires_at_s == pytest.approx(info.created_s + 30 * 86400)


def test_a_key_without_options_has_no_limit(exaslurm: Run, run_dir: RunDir) -> None:
    exaslurm("key", "add", "hello", "ada")
    (info,) = list_keys(run_dir)
    assert (info.requests_per_min, info.tokens_per_min, info.concurrency) == (None, None, None)
    assert (info.priority, info.models, info.expires_at_s) == (0, (), None)


def test_the_list_shows_the_limits(exaslurm: Run, run_dir: RunDir) -> None:
    exaslurm("key", "add", "hello", "ada", "--requests-per-min", 60, "--priority", 7)
    exaslurm("key", "add", "hello", "bob", "--models", "m,n", "--tokens-per-min", 0)
    lines = exaslurm("key", "list", "hello").out.splitlines()
    heads = "NAME MADE EXPIRES REQUESTS/MIN TOKENS/MIN AT A TIME PRIORITY MODELS"
    assert " ".join(lines[0].split()) == heads
    assert lines[1].split()[-5:] == ["60", "-", "-", "7", "all"]
    assert lines[2].split()[-6:] == ["-", "-", "-", "0", "m,", "n"]
    ada, bob = json.loads(exaslurm("key", "list", "hello", "--json").out)["keys"]
    assert (ada["requests_per_min"], ada["tokens_per_min"], ada["priority"]) == (60, None, 7)
    assert (bob["models"], bob["concurrency"]) == (["m", "n"], None)
    assert "sha256" not in ada


def test_a_key_is_changed_where_it_is_asked_for(exaslurm: Run, run_dir: RunDir) -> None:
    key = exaslurm("key", "add", "hello", "ada", "--concurrency", 4, "--expires", "1h").out.strip()
    done = exaslurm("key", "set", "hello", "ada", "--requests-per-min", 5, "--expires", "never")
    assert (done.code, done.out) == (0, "")
    assert "key 'ada' of hello changed" in done.err
    (info,) = list_keys(run_dir)
    assert (info.requests_per_min, info.concurrency, info.expires_at_s) == (5, 4, None)
    exaslurm("key", "set", "hello", "ada", "--concurrency", 0, "--models", "m")
    exaslurm("key", "set", "hello", "ada", "--models", "")
    (info,) = list_keys(run_dir)
    assert (info.requests_per_min, info.concurrency, info.models) == (5, None, ())
    keys = ClientKeys(run_dir)
    keys.refresh()
    assert keys.check_key(key) == info


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "hello", "ada", "--concurrency", "-1"], "--concurrency"),
        (["add", "hello", "ada", "--requests-per-min", "lots"], "--requests-per-min"),
        (["add", "hello", "ada", "--expires", "inf"], "above 0"),
        (["add", "hello", "internal"], "the deployment's own key"),
        (["set", "hello", "ada"], "nothing to change"),
        (["set", "hello", "bob", "--priority", "1"], "no key named 'bob'"),
        (["add", "hello", "ada", "--concurency", "1"], "did you mean --concurrency?"),
    ],
)
def test_what_cannot_be(exaslurm: Run, run_dir: RunDir, words: list[str], says: str) -> None:
    done = exaslurm("key", *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert list_keys(run_dir) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("7d", 604800), ("never", math.inf)],
)
def test_times(text: str, seconds: float) -> None:
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5s", "nan", "inf", "5w", "d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationType().convert(text, None, None)
