"""What a user should know of a plan though it is no error."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from exaslurm.plan.context import Findings
from exaslurm.site.model import Site
from exaslurm.spec.model import Spec


def note_unused(spec: Spec, findings: Findings) -> None:
    """Tell which keys of the spec this version reads but does not act on."""
    for key in unused_keys(spec):
        findings.note(f"{key}: read, but this version does not act on it")


def unused_keys(model: BaseModel, prefix: str = "") -> Iterator[str]:
    """Keys that were given and are marked as not acted on."""
    fields = type(model).model_fields
    for name in sorted(model.model_fields_set, key=list(fields).index):
        field, value, key = fields[name], getattr(model, name), prefix + name
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("x-not-yet"):
            if value:
                yield key
        elif isinstance(value, BaseModel):
            yield from unused_keys(value, key + ".")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from unused_keys(item, f"{key}[{index}].")


def note_site(site: Site, findings: Findings) -> None:
    """Tell what of the site nobody has confirmed."""
    if site.unverified:
        keys = ", ".join(site.unverified)
        findings.note(f"site {site.name}: not confirmed on the machine: {keys}")
