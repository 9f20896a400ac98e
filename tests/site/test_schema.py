"""The JSON Schema of site configs, and the reference page made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from exaslurm.site.schema import site_schema
from exaslurm.spec.reference import SITE_PAGE, reference
from exaslurm.util.yaml_lines import read_document

ROOT = Path(__file__).resolve().parents[2]


def errors(text: str) -> list[str]:
    data = read_document(text, "x").data
    validator = jsonschema.Draft202012Validator(site_schema())
    return [error.json_path for error in validator.iter_errors(data)]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "site_configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_site_configs_fit(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(site_schema())
    assert errors(path.read_text()) == []


def test_editors_see_what_is_wrong() -> None:
    head = "schema: exaslurm/site/v1\nname: s\nnode_kinds: {cpu: {}}\n"
    assert errors(head + "slurm: {ray: false, version: 24.10}") == []
    assert errors(head + "slurm: {ray: {enabled: false}}") == []
    assert errors(head + "slurm: {ray: 1}") == ["$.slurm.ray"]
    assert errors(head + "interfaces: ib0") == ["$"]
    assert errors(head + "storage: {ram: 1}") == ["$.storage.ram"]


def test_every_key_is_described() -> None:
    schema: dict[str, Any] = site_schema()
    bare = [
        f"{name}.{key}"
        for name, section in {"": schema, **schema["$defs"]}.items()
        for key, value in section.get("properties", {}).items()
        if not value.get("description") and "$ref" not in value
    ]
    assert bare == []


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/site.md").read_text()
    assert page == reference(site_schema(), SITE_PAGE), "run scripts/reference"
