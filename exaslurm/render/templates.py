"""Where batch script templates come from, and the rules they are rendered by."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from exaslurm.errors import SiteError
from exaslurm.render import quoting
from exaslurm.util.user import config_dir

PACKAGE_DIR = Path(__file__).resolve().parent.parent / "sbatch_templates"
DIR_NAME = "sbatch_templates"

_BUILTIN_FILTERS = ("default", "dictsort", "first", "int", "last", "length", "list", "lower",
                    "map", "rejectattr", "selectattr", "sort", "unique", "upper")  # fmt: skip


def search_path(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Directories whose templates take the place of the package's, the first one winning:
    ``$EXASLURM_SITE_CONFIG`` (its directories and the ones above them), the user's, the host's.
    """
    named = [Path(part) for part in environ.get("EXASLURM_SITE_CONFIG", "").split(":") if part]
    places = [
        *(place / DIR_NAME for directory in named for place in (directory, directory.parent)),
        config_dir(environ) / "exaslurm" / DIR_NAME,
        Path("/etc/exaslurm") / DIR_NAME,
    ]
    # isdir is false where one may not look
    return tuple(place for place in dict.fromkeys(places) if os.path.isdir(place))


def environment(template_dirs: Sequence[Path] = ()) -> jinja2.Environment:
    """A jinja2 environment in which no value reaches a script unquoted.

    A template in one of ``template_dirs`` replaces the package's of the same name; one that says
    ``{% extends "package/cell.sbatch.j2" %}`` replaces only the blocks that it defines.
    """
    package = jinja2.FileSystemLoader(PACKAGE_DIR)
    loaders: list[jinja2.BaseLoader] = [jinja2.FileSystemLoader(path) for path in template_dirs]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [*loaders, package, jinja2.PrefixLoader({"package": package})],
        ),
        # Escaping is done by `finalize`; `autoescape` is what lets it tell text that a filter or
        # a macro has quoted (Markup) from a bare value.
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters = {
        # Of jinja2's own only those that neither quote nor unquote.
        **{name: environment.filters[name] for name in _BUILTIN_FILTERS},
        "q": quoting.shell_word,
        "words": quoting.shell_words,
        "variable": quoting.variable_name,
        "directive": quoting.directive,
        "comment": quoting.comment_text,
        "shell_lines": quoting.shell_lines,
    }
    return environment


def render(environment: jinja2.Environment, name: str, **values: object) -> str:
    """The text of a template. SiteError names the file and line of a broken one."""
    try:
        return environment.get_template(name).render(**values)
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or error.name}:{error.lineno}"
        raise SiteError(f"{where}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise SiteError(
            f"there is no template {error.name!r} (wanted for {name})",
            remedy="an overriding template may extend 'package/NAME' only",
        ) from None
    except jinja2.TemplateError as error:
        raise SiteError(f"{_origin(error)}: {error.message}") from None


def _origin(error: jinja2.TemplateError) -> str:
    """File and line in the template: jinja2 has put them into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames if ".j2" in frame.filename]
    return places[-1] if places else "template"


def _finalize(value: object) -> object:
    """Quote whatever a template prints without a filter."""
    if isinstance(value, Markup | jinja2.Undefined):
        return value  # an Undefined raises by itself, and then names the variable
    return quoting.shell_word(value)
