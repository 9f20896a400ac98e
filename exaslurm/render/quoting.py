"""How a value becomes text of a batch script: quoted, or not at all.

A script has two grammars. Its body is shell. Its ``#SBATCH`` lines are comments to the shell and
are read by sbatch with rules of its own (``_get_argument`` in sbatch/opt.c): a backslash escapes
the next character even between single quotes, and an unquoted ``#`` ends the line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from markupsafe import Markup

from exaslurm.errors import PlanError

_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9@%+=:,./_&|*!\[\]()-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


def shell_word(value: object) -> Markup:
    """One word of shell."""
    text = str(value)
    if "\x00" in text or "\n" in text:
        raise PlanError(f"{text!r} cannot be written into a script: it has a line break")
    return Markup(shlex.quote(text))


def shell_words(values: Iterable[object]) -> Markup:
    """Several words, blanks between."""
    return Markup(" ").join(shell_word(value) for value in values)


def variable_name(value: object) -> Markup:
    """The name of an environment variable."""
    text = str(value)
    if _VARIABLE.fullmatch(text) is None:
        raise PlanError(f"{text!r} is not the name of an environment variable")
    return Markup(text)


def directive(option: tuple[str, str | None]) -> Markup:
    """``--name`` or ``--name=value``, for a line that begins with ``#SBATCH``."""
    name, value = option
    if _OPTION.fullmatch(name) is None:
        raise PlanError(
            f"{name!r} is not a long option of sbatch (small letters and '-', no dashes in front)"
        )
    if value is None:
        return Markup(f"--{name}")
    if _CONTROL.search(value):
        raise PlanError(f"--{name}: {value!r} has a line break or another control character")
    if _PLAIN_DIRECTIVE.fullmatch(value):
        return Markup(f"--{name}={value}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return Markup(f'--{name}="{escaped}"')


def output_path(path: object) -> str:
    """A path for ``--output``, where ``%`` begins a pattern."""
    text = str(path)
    if "\\" in text:
        raise PlanError(
            f"{text}: Slurm takes the backslash in the name of a log file for an escape",
            remedy="set EXASLURM_HOME to a directory without one",
        )
    return text.replace("%", "%%")


def comment_text(value: object) -> Markup:
    """Text inside a comment, which a line break must not end."""
    return Markup(_CONTROL.sub(" ", str(value)))


def shell_lines(lines: Iterable[str]) -> Markup:
    """Lines that *are* shell: what the site or the spec wrote for its prologue, as it stands."""
    return Markup("\n").join(Markup(line) for line in lines)
