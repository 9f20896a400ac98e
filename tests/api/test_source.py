"""Specs as files, text and mappings; values set from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.api.source import SpecSource
from exaslurm.api.starter import starter_spec
from exaslurm.errors import SpecError, UserError
from exaslurm.site.load import load_site
from exaslurm.spec.load import load_spec

TEXT = """\
# a comment
schema: exaslurm/v1
deployment: hello
site: local
account: old   # who pays
models: [{name: m, engine: {kind: simulated}}]
"""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    assert SpecSource.of(path) == SpecSource.of(str(path)) == SpecSource(path, TEXT)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        SpecSource.of(tmp_path / "spec.yaml")


def test_text_and_mapping_give_the_same_spec() -> None:
    mapping = {
        "schema": "exaslurm/v1",
        "deployment": "hello",
        "site": "local",
        "account": "old",
        "models": ({"name": "m", "engine": {"kind": "simulated"}},),
    }
    from_text, from_mapping = SpecSource.of(TEXT), SpecSource.of(mapping)
    first = load_spec(from_text.path, from_text.text)
    second = load_spec(from_mapping.path, from_mapping.text)
    assert first.model_dump() == second.model_dump()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"account": "new"}, {"account": "new", "partition": None}),
        ({"partition": "gpu"}, {"account": "old", "partition": "gpu"}),
        ({"account": "007", "time_limit": "04:00:00"}, {"account": "007"}),
        ({}, {"account": "old"}),
    ],
)
def test_values_take_the_place_of_the_specs(
    values: dict[str, str], expected: dict[str, str | None]
) -> None:
    source = SpecSource.of(TEXT).with_values(values)
    spec = load_spec(source.path, source.text)
    assert {key: getattr(spec, key) for key in expected} == expected
    assert source.text.splitlines()[0] == "# a comment"


def test_lines_keep_their_numbers() -> None:
    source = SpecSource.of(TEXT + "modles: 3\n").with_values({"account": "new", "qos": "x"})
    with pytest.raises(SpecError, match="<text>:7: modles"):
        load_spec(source.path, source.text)


@pytest.mark.parametrize("site", ["generic", "lab", "local"])
def test_the_starter_spec_is_valid(site: str) -> None:
    text = starter_spec("hello", load_site(site, {}))
    spec = load_spec(Path("spec.yaml"), text)
    assert (spec.deployment, spec.site) == ("hello", site)


@pytest.mark.parametrize("site", ["generic", "lab", "local"])
def test_what_the_starter_spec_comments_out_is_valid_too(site: str) -> None:
    """Every line that begins with '# key:' is one that a user may take the mark off."""
    lines = starter_spec("hello", load_site(site, {})).splitlines()
    opened = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":" in line else line
        for line in lines[3:]
    ]
    alternatives = ("hf:", "path:", "kind: gpu", "kind: machine")
    kept = [line for line in opened if not line.strip().startswith(alternatives)]
    spec = load_spec(Path("spec.yaml"), "\n".join(["schema: exaslurm/v1", *kept]))
    assert spec.gateway.bind == "127.0.0.1"


def test_a_name_that_cannot_be() -> None:
    with pytest.raises(UserError, match="cannot name a deployment"):
        starter_spec("Hello World", load_site("local", {}))
