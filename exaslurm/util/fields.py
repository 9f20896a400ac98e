"""Types of single values in spec and site files.

Whatever may become part of a file name, a job name, an ``#SBATCH`` line or an address is checked
here, where the error can still name the line of the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from exaslurm.util.yaml_lines import Document, Path, Problem, key_path, text_of

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
WORD = r"[A-Za-z0-9_.,:;@%+=/&|*()\[\]!~^-]+"
TIME = r"(?:\d+-\d+(?::\d+){0,2}|\d+(?::\d+){0,2}|(?i:unlimited|infinite))"
_SWITCHES = r"\d+(?:@" + TIME + r")?"
_DIRECTIVE = r"(?:--)?[a-z][a-z0-9-]*(?:=.+)?"


class Section(BaseModel):
    """A mapping of a spec or site file: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Root(Section):
    """A whole file, which remembers the lines it came from."""

    _document: Document = Document("<unknown>")

    def attach(self, document: Document) -> Self:
        """Remember the document; returns itself."""
        self._document = document
        return self

    @property
    def document(self) -> Document:
        return self._document

    def problem(self, key: str, message: str) -> Problem:
        """A problem with the value of ``key`` (``models[0].name``), with its line."""
        return self._document.problem(file_path(self._document, key_path(key)), message)

    def where(self, key: str) -> str:
        """``file:line`` of a key."""
        return self._document.place(file_path(self._document, key_path(key)))


def file_path(document: Document, path: Path) -> Path:
    """The path as written: a list may be given as a single mapping, which has no index."""
    here: Any = document.data
    written: list[str | int] = []
    for index, part in enumerate(path):
        if isinstance(part, int) and not isinstance(here, list):
            continue
        written.append(part)
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            return (*written, *path[index + 1 :])
    return tuple(written)


def bad(message: str) -> PydanticCustomError:
    """The error to raise in a validator; the message is shown as it is."""
    return PydanticCustomError("exaslurm", "{message}", {"message": message})


def _to_text(value: Any) -> Any:
    return text_of(value)


def _matching(pattern: str, says: str) -> AfterValidator:
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise bad(says)
        return value

    return AfterValidator(check)


def _plain(value: str) -> str:
    if not value.strip():
        raise bad("must not be empty")
    if not value.isprintable():
        raise bad("must be one line without control characters")
    return value


def _flag(value: Any) -> Any:
    words = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _path(value: str) -> str:
    if not re.match(r"/|~/|\$\{?[A-Za-z_]", value):
        raise bad("must be an absolute path, or begin with ~/ or $HOME/")
    return value


def _scalar(pattern: str | None = None, *, anchored: bool = True) -> WithJsonSchema:
    """For editors: text, or a number that is taken as the text it was written as."""
    schema: dict[str, Any] = {"type": ["string", "number"]}
    if pattern is not None:
        schema["pattern"] = f"^{pattern}$" if anchored else pattern
    return WithJsonSchema(schema)


TEXT = BeforeValidator(_to_text)
Text = Annotated[str, TEXT, AfterValidator(_plain), _scalar()]
AnyText = Annotated[str, TEXT, WithJsonSchema({"type": ["string", "number", "boolean"]})]
Name = Annotated[str, TEXT, _matching(NAME, f"must match {NAME}"), _scalar(NAME)]
EnvName = Annotated[str, _matching(_ENV_NAME, "not a name of an environment variable")]
Word = Annotated[
    str,
    TEXT,
    _matching(WORD, "must be one word of letters, digits and _.,:;@%+=/&|*()[]!~^-"),
    _scalar(WORD),
]
TimeLimit = Annotated[
    str,
    TEXT,
    _matching(
        TIME,
        "use minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
        "days-hours:minutes:seconds or UNLIMITED",
    ),
    _scalar(TIME.replace("(?i:unlimited|infinite)", "UNLIMITED|INFINITE|unlimited|infinite")),
]
Switches = Annotated[str, TEXT, _matching(_SWITCHES, "use COUNT or COUNT@TIME"), _scalar()]
Directive = Annotated[
    str,
    TEXT,
    AfterValidator(_plain),
    _matching(_DIRECTIVE, "use --option=value or --option"),
    _scalar(_DIRECTIVE),
]
DirectiveName = Annotated[
    str,
    TEXT,
    _matching(r"(?:--)?[a-z][a-z0-9-]*", "use the option's long name"),
    _scalar(r"(?:--)?[a-z][a-z0-9-]*"),
]
PathText = Annotated[
    str, AfterValidator(_plain), AfterValidator(_path), WithJsonSchema({"type": "string"})
]

# No cluster has more of anything: a slip of the finger is told at its line, not found by Slurm, or
# by a planner that counts to it.
MOST = 1_000_000_000
MOST_NODES = 100_000
MOST_REPLICAS = 1_000_000
Count = Annotated[int, Strict(), Field(ge=1, le=MOST)]
NodeCount = Annotated[int, Strict(), Field(ge=1, le=MOST_NODES)]
ReplicaCount = Annotated[int, Strict(), Field(ge=1, le=MOST_REPLICAS)]
Natural = Annotated[int, Strict(), Field(ge=0, le=MOST)]
Whole = Annotated[int, Strict(), Field(ge=-MOST, le=MOST)]
Positive = Annotated[float, Strict(), Field(gt=0, le=MOST, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, BeforeValidator(_flag), Strict()]
PortNumber = Annotated[int, Strict(), Field(ge=1, le=65535)]
Environment = dict[EnvName, AnyText]
ONE_OR_LIST = BeforeValidator(_listed)


def time_limit_s(text: str) -> float:
    """Seconds of a Slurm time limit; infinity for no limit (0, UNLIMITED, INFINITE)."""
    if not text[0].isdigit():
        return float("inf")
    days, dash, rest = text.partition("-") if "-" in text else ("0", "", text)
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        minutes, seconds = [*parts, 0][:2]
        hours = 0
    total = ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    return float(total) if total else float("inf")


def directive_pair(text: str) -> tuple[str, str | None]:
    """``--wckey=a`` as ``("wckey", "a")``; an option without a value has None."""
    name, equals, value = text.removeprefix("--").partition("=")
    return name, value if equals else None
