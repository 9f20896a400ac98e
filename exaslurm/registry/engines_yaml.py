"""The full form of a list of engines: YAML, checked line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from exaslurm.errors import StateError, UserError
from exaslurm.keys.secrets import read_private
from exaslurm.registry.changes import Looks, look
from exaslurm.registry.engines_file import Engine, EnginesFile, UnusableKeys, parse_url
from exaslurm.util.checked import check, report
from exaslurm.util.fields import PathText, Positive, Root, Section, Text, Word
from exaslurm.util.yaml_lines import Problem, read_document

_MAX_KEY_BYTES = 4096


def _listed(value: object) -> object:
    """A single name may stand without brackets."""
    return [value] if isinstance(value, str) else value


def _mapped(value: object) -> object:
    """An engine of which only the address is given may be that address."""
    return {"url": value} if isinstance(value, str) else value


class _Engine(Section):
    url: Text
    id: Word | None = None
    models: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = ()
    node: Word | None = None
    switch: Word | None = None
    version: Word | None = None
    weight: Positive = 1.0
    key_file: PathText | None = None


class _Engines(Root):
    schema_: Literal["exaslurm/engines/v1"] = Field(default="exaslurm/engines/v1", alias="schema")
    key_file: PathText | None = None
    engines: Annotated[
        tuple[Annotated[_Engine, BeforeValidator(_mapped)], ...], Field(min_length=1)
    ]


def parse(path: Path, text: str) -> EnginesFile:
    """The engines of a YAML text; ``path`` names it in errors (UserError, every problem)."""
    document = read_document(text, str(path))
    model, problems = check(_Engines, document)
    if model is None:
        raise UserError(report(problems))
    keys = _Keys()
    engines: list[Engine] = []
    ids: dict[str, int] = {}
    urls: dict[str, int] = {}
    for index, item in enumerate(model.engines):
        where = ("engines", index)
        field = (*where, "url") if (*where, "url") in document.places else where
        try:
            url, ident, node = parse_url(item.url)
        except ValueError as error:
            problems.append(document.problem(field, str(error)))
            continue
        ident = item.id or ident
        for kind, value, seen in (("address", url, urls), ("id", ident, ids)):
            first = seen.setdefault(value, index)
            if first != index:
                place = document.place(("engines", first))
                message = f"the {kind} {value} is already that of the engine at {place}"
                problems.append(document.problem(where, message))
                break
        key = None
        named = item.key_file or model.key_file
        if named is not None:
            owner = where if item.key_file else ()
            try:
                key = keys.read(named)
            except StateError as error:
                problem = document.problem((*owner, "key_file"), str(error))
                if problem not in problems:
                    problems.append(_with_remedy(problem, error))
        engines.append(
            Engine(
                url=url,
                id=ident,
                node=item.node or node,
                served_names=tuple(dict.fromkeys(item.models)),
                switch=item.switch or "",
                version=item.version or "",
                weight=item.weight,
                key=key,
            )
        )
    if problems:
        raise UnusableKeys(report(list(dict.fromkeys(problems))), keys.files)
    return EnginesFile(path=path, engines=tuple(engines), key_files=keys.files, looks=keys.looks)


def _with_remedy(problem: Problem, error: StateError) -> Problem:
    message = f"{problem.message} ({error.remedy})" if error.remedy else problem.message
    return Problem(problem.where, problem.key, message)


class _Keys:
    """Reads each key file once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.looks: Looks = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that were asked for, whatever is in them."""
        return tuple(self.looks)

    def read(self, name: str) -> str:
        """StateError if it is missing, holds no key, or can be read by others."""
        if name not in self._known:
            path = Path(os.path.expandvars(name)).expanduser()
            self.looks[path] = look(path)
            key = read_private(path, limit=_MAX_KEY_BYTES).decode("ascii", "replace").strip()
            if not key.isprintable() or " " in key or not key.isascii() or not key:
                raise StateError(
                    f"{path} does not hold a key", remedy="write the key alone into it"
                )
            self._known[name] = key
        return self._known[name]
