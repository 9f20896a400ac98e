"""YAML that remembers where each value stood, so that an error can name file and line.

Scalars follow the YAML 1.2 core schema: ``no`` is text and ``04:00:00`` is not a number of
seconds. Numbers keep the characters they were written with (``text_of``), because ``24.10`` as a
version and ``007`` as an account are text to whoever wrote them. Anchors, aliases and ``<<`` work;
a key that stands twice in one mapping is an error.
"""

from __future__ import annotations

import difflib
import pathlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from exaslurm.errors import UserError

Path = tuple[str | int, ...]

# Aliases let a few lines stand for a huge document; ours are small.
MAX_VALUES = 100_000
# More is some other file; the parser would be at it for minutes.
MAX_BYTES = 1024 * 1024

_SCALARS: tuple[tuple[str, str], ...] = (
    ("null", r"(?:~|null|Null|NULL|)"),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)"),
    ("int", r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
    ("float", r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"),
)
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "map", "seq")}


class YamlInt(int):
    """A whole number and the characters it was written with."""

    text: str


class YamlFloat(float):
    """A number and the characters it was written with."""

    text: str


def text_of(value: Any) -> Any:
    """The characters of a number or truth value as written; any other value unchanged."""
    if isinstance(value, YamlInt | YamlFloat):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: ``file:line: key: message``."""

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


@dataclass(slots=True)
class Document:
    """The data of one YAML file (or of several, one laid over the other) and its lines."""

    name: str
    data: Any = None
    places: dict[Path, tuple[str, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> str:
        """``file:line`` of a value, or of the nearest mapping that would hold it."""
        for end in range(len(path), -1, -1):
            found = self.places.get(path[:end])
            if found:
                return f"{found[0]}:{found[1]}"
        return self.name

    def value(self, path: Path) -> Any:
        """The value at ``path``; KeyError, IndexError or TypeError if there is none."""
        here = self.data
        for part in path:
            here = here[part]
        return here

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at ``path``."""
        return Problem(self.place(path), key_text(path), message)

    def over(self, base: Document) -> Document:
        """This document laid over another: mappings merge, everything else is replaced."""
        places = dict(base.places)
        data = _merge(base.data, self.data, (), places)
        places.update(self.places)
        return Document(self.name, data, places, [*base.problems, *self.problems])


def _merge(below: Any, above: Any, path: Path, places: dict[Path, tuple[str, int]]) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        merged = dict(below)
        for key, value in above.items():
            merged[key] = _merge(below[key], value, (*path, key), places) if key in below else value
        return merged
    for old in [place for place in places if place[: len(path)] == path]:
        del places[old]
    return above


def key_text(path: Path) -> str:
    """``("models", 0, "name")`` as ``models[0].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def key_path(text: str) -> Path:
    """``models[0].name`` as ``("models", 0, "name")``."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", text)
    return tuple(int(index) if index else name for index, name in parts)


def nearest(name: str, valid: Iterable[str]) -> str:
    """``; did you mean X?`` for the most similar valid name, else the list of all of them."""
    names = list(valid)
    folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded[close[0]]}?"
    return f"; valid: {', '.join(sorted(names))}" if names else ""


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2 instead of 1.1."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own name


for _name, _pattern in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern + r"\Z"), None)


def read_yaml_file(path: pathlib.Path, error: type[UserError], *, remedy: str | None = None) -> str:
    """The text of a spec or site file; raises ``error`` if it cannot be one."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as reason:  # ValueError: a NUL in the name
        said = getattr(reason, "strerror", None) or str(reason)
        raise error(f"cannot read {path}: {said}", remedy=remedy) from None
    if len(raw) > MAX_BYTES:
        raise error(f"{path}: larger than {MAX_BYTES // 1024} KiB, which no such file is")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        raise error(f"{path}:{line}: not UTF-8 text (byte {reason.start})") from None


def read_document(text: str, name: str) -> Document:
    """Parse one YAML document; what is wrong with it is in ``problems``."""
    document = Document(name)
    try:
        root = _root(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not valid YAML: the character {chr(error.character)!r} is not allowed"
        document.problems.append(Problem(f"{name}:{line}", "", message))
        return document
    except yaml.YAMLError as error:
        document.problems.append(_syntax_problem(error, name))
        return document
    except RecursionError:
        document.problems.append(Problem(name, "", "not valid: nested too deeply"))
        return document
    if root is None:
        document.problems.append(Problem(name, "", "the file is empty"))
        return document
    document.places[()] = (name, root.start_mark.line + 1)
    builder = _Builder(document)
    document.data = builder.build(root, ())
    if builder.left < 0:
        document.data = None  # half a document: what else is wrong with it would be noise
        return document
    if not isinstance(document.data, dict) and not document.problems:
        document.problems.append(document.problem((), "expected a mapping (key: value)"))
    return document


def _root(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    said = [getattr(error, "context", None), getattr(error, "problem", None)]
    reason = ", ".join(part for part in said if part) or str(error).splitlines()[0]
    if "\\t" in reason:
        reason += "; indent with spaces, not tabs"
    return Problem(where, "", f"not valid YAML: {reason}")


class _Builder:
    """Turns nodes into data and notes the line of each value."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = MAX_VALUES
        self.open: set[int] = set()

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.document.places.setdefault(path, (self.document.name, node.start_mark.line + 1))
        self.left -= 1
        if self.left < 0 or id(node) in self.open:
            if self.left >= -1:
                self._report(path, node, "too many values, or an alias inside its own anchor")
            return None
        if node.tag not in _KNOWN_TAGS:
            self._report(path, node, f"tags such as {node.tag} are not supported")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else None
        finally:
            self.open.discard(id(node))

    def _report(self, path: Path, node: yaml.Node, message: str) -> None:
        where = f"{self.document.name}:{node.start_mark.line + 1}"
        self.document.problems.append(Problem(where, key_text(path), message))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        merges: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(path, key_node, "a key must be a single word")
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                merges.append(value_node)
                continue
            here = (*path, key)
            if key in first_lines:
                self._report(here, key_node, f"already given in line {first_lines[key]}")
                continue
            first_lines[key] = key_node.start_mark.line + 1
            self.document.places[here] = (self.document.name, first_lines[key])
            data[key] = self.build(value_node, here)
        for merge in merges:
            for source in merge.value if isinstance(merge, yaml.SequenceNode) else [merge]:
                if not isinstance(source, yaml.MappingNode):
                    self._report(path, source, "<< needs a mapping")
                    continue
                for key, value in (self.build(source, (*path, "<<")) or {}).items():
                    if key not in data:
                        data[key] = value
                        self._copy_places((*path, "<<", key), (*path, key))
        return data

    def _copy_places(self, source: Path, target: Path) -> None:
        places = self.document.places
        for path in [path for path in places if path[: len(source)] == source]:
            places[target + path[len(source) :]] = places[path]

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                whole = YamlInt(text, 0 if text[:2] in ("0x", "0o") else 10)
                whole.text = text
                return whole
            if kind == "float":
                number = YamlFloat(text.replace(".inf", "inf").replace(".nan", "nan"))
                number.text = text
                return number
        except (KeyError, ValueError):
            self._report(path, node, f"not a {kind} (got {text!r})")
            return None
        return text
