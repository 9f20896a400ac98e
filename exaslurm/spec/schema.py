"""JSON Schema of cluster specs, for editors."""

from __future__ import annotations

from typing import Any

from exaslurm.spec.model import Spec
from exaslurm.util.checked import schema_of


def spec_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a cluster spec."""
    schema = schema_of(Spec, "exaslurm cluster spec, version 1")
    workers = schema["properties"]["workers"]
    described = {key: workers.pop(key) for key in ("default", "description")}
    schema["properties"]["workers"] = {**described, "anyOf": [workers["items"], workers]}
    return schema
