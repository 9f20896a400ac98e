"""From a YAML document to a checked model: every problem at once, in words a user can act on."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from exaslurm.util.fields import Root, file_path
from exaslurm.util.yaml_lines import Document, Path, Problem, key_text, nearest

R = TypeVar("R", bound=Root)

_MESSAGES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "model_type": "must be a mapping (key: value)",
    "model_attributes_type": "must be a mapping (key: value)",
    "dict_type": "must be a mapping (key: value)",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_short": "must have at least {min_length} item(s)",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}


def check(kind: type[R], document: Document) -> tuple[R | None, list[Problem]]:
    """The model of a document, or None and what is wrong with it, in the order of the lines."""
    problems = list(document.problems)
    if not isinstance(document.data, dict):
        return None, problems
    try:
        model = kind.model_validate(document.data)
    except ValidationError as error:
        # A value that could not be read stands as null; that it is null is no second problem.
        unread = {problem.key for problem in problems if problem.key}
        seen: set[Path] = set()
        for details in error.errors(include_url=False):
            path = _written(document, details)
            if path not in seen and key_text(path) not in unread and not _echo(details):
                seen.add(path)
                problems.append(document.problem(path, _message(kind, path, details)))
        return None, sorted(problems, key=_by_line)
    return (None if problems else model.attach(document)), problems


def report(problems: Sequence[Problem]) -> str:
    """All problems, one a line."""
    return "\n".join(str(problem) for problem in problems)


def _by_line(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.where.rpartition(":")
    return (name, int(line)) if line.isdigit() else (problem.where, 0)


def _echo(details: ErrorDetails) -> bool:
    """Whether a list is said to be too short only because its items are wrong."""
    given = details["input"]
    least = details.get("ctx", {}).get("min_length", 0)
    return details["type"] == "too_short" and isinstance(given, list) and len(given) >= least


def _written(document: Document, details: ErrorDetails) -> Path:
    """The place in the file of an error. pydantic also names the branches of a union and the
    key of a mapping; those are no places."""
    path = file_path(document, tuple(part for part in details["loc"] if part != "[key]"))
    if details["type"] == "missing":
        return path
    for end in range(len(path), 0, -1):
        try:
            document.value(path[:end])
        except (KeyError, IndexError, TypeError):
            continue
        return path[:end]
    return path


def _message(kind: type[BaseModel], path: Path, details: ErrorDetails) -> str:
    type_, context = details["type"], details.get("ctx", {})
    hint = ""
    if type_ == "extra_forbidden":
        message, hint = "unknown key", nearest(str(path[-1]), keys_at(kind, path[:-1]))
    elif type_ == "literal_error":
        valid = re.findall(r"'([^']*)'", str(context["expected"]))
        message = f"must be one of {', '.join(valid)}" if valid[1:] else f"must be {valid[0]}"
        given = details["input"]
        if isinstance(given, str) and valid[1:]:
            close = nearest(given, valid)
            hint = close if "did you mean" in close else ""
    else:
        known = _MESSAGES.get(type_)
        message = known.format_map(context) if known else details["msg"]
    return message + _got(details) + hint


def _got(details: ErrorDetails) -> str:
    """What was found. A rule about a long list or mapping says itself what it minds."""
    given = details["input"]
    long = isinstance(given, dict | list | tuple) and shown(given).endswith("...")
    if details["type"] == "missing" or (long and details["type"] == "exaslurm"):
        return ""
    return f" (got {shown(given)})"


def shown(value: Any, limit: int = 60) -> str:
    """A value as it may stand in a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def keys_at(kind: type[BaseModel], path: Path) -> list[str]:
    """The keys that the mapping at ``path`` may have, as they are written."""
    here: Any = kind
    for part in path:
        here = _step(here, part)
    model = _model_in(here)
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _step(kind: Any, part: str | int) -> Any:
    model = _model_in(kind)
    if isinstance(part, int) or model is None:
        mapping = _first(kind, lambda k: typing.get_origin(k) in (dict, Mapping))
        if mapping is not None and isinstance(part, str):
            return typing.get_args(mapping)[1]
        return kind
    for name, field in model.model_fields.items():
        if part == (field.alias or name):
            return field.annotation
    return None


def _model_in(kind: Any) -> type[BaseModel] | None:
    found = _first(kind, lambda k: isinstance(k, type) and issubclass(k, BaseModel))
    return typing.cast("type[BaseModel] | None", found)


def _first(kind: Any, wanted: Callable[[Any], bool]) -> Any:
    """The first type inside an annotation (unions, lists, Annotated) that is wanted."""
    if wanted(kind):
        return kind
    if typing.get_origin(kind) in (dict, Mapping):
        return None
    for inner in typing.get_args(kind):
        if not isinstance(inner, types.NoneType):
            found = _first(inner, wanted)
            if found is not None:
                return found
    return None


def schema_of(kind: type[BaseModel], title: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file, for editors."""
    schema = _untitled(kind.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic derives from names: they tell nobody anything."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
