"""JSON Schema of site configs, for editors."""

from __future__ import annotations

from typing import Any

from exaslurm.site.model import Site
from exaslurm.util.checked import schema_of


def site_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a site config."""
    schema = schema_of(Site, "exaslurm site config, version 1")
    ray = schema["$defs"]["Slurm"]["properties"]["ray"]
    described = {key: ray.pop(key) for key in ("default", "description")}
    schema["$defs"]["Slurm"]["properties"]["ray"] = {
        **described,
        "anyOf": [{"type": "boolean"}, ray],
    }
    return schema
