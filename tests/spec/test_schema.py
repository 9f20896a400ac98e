"""The JSON Schema says the same as the checks, and the reference page the same as the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from exaslurm.spec.reference import SPEC_PAGE, reference
from exaslurm.spec.schema import spec_schema
from exaslurm.util.yaml_lines import read_document

ROOT = Path(__file__).resolve().parents[2]


def errors(text: str) -> list[str]:
    data = read_document(text, "x").data
    validator = jsonschema.Draft202012Validator(spec_schema())
    return [error.json_path for error in validator.iter_errors(data)]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(spec_schema())


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_examples_fit(path: Path) -> None:
    assert errors(path.read_text()) == []


HEAD = (
    "schema: exaslurm/v1\ndeployment: d\nsite: s\nmodels: [{name: m, engine: {kind: simulated}}]\n"
)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("worker: 1", "$"),
        ("deployment: a b", "$.deployment"),
        ("time_limit: 1h", "$.time_limit"),
        ("ray: 3", "$.ray"),
        ("gateway: {port: -1}", "$.gateway.port"),
        ("slurm: {extra_directives: ['a b']}", "$.slurm.extra_directives[0]"),
    ],
)
def test_editors_see_what_is_wrong(text: str, where: str) -> None:
    name = text.partition(":")[0]
    head = "".join(line + "\n" for line in HEAD.splitlines() if not line.startswith(name + ":"))
    assert errors(HEAD) == []
    assert errors(head + text) == [where]


def test_workers_may_be_one_mapping_or_a_list() -> None:
    assert errors(HEAD + "workers: {nodes: 2}") == []
    assert errors(HEAD + "workers: [{nodes: 2}, {kind: b}]") == []
    assert errors(HEAD + "workers: 2") == ["$.workers"]


def test_every_key_is_described() -> None:
    assert undescribed(spec_schema()) == []


def undescribed(schema: dict[str, Any]) -> list[str]:
    sections = {"": schema, **schema["$defs"]}
    return [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, value in section.get("properties", {}).items()
        if not value.get("description") and "$ref" not in value
    ]


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/spec.md").read_text()
    assert page == reference(spec_schema(), SPEC_PAGE), "run scripts/reference"


def test_the_example_of_the_reference_page_is_valid() -> None:
    text = SPEC_PAGE.split("```yaml\n")[1].split("```")[0]
    assert errors(text) == []
    assert yaml.safe_load(text)["deployment"] == "hello"
