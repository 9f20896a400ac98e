"""Finding and reading site configs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from exaslurm.errors import SiteError
from exaslurm.site.checks import cross_problems
from exaslurm.site.locks import broken_locks, lay_over
from exaslurm.site.model import Site
from exaslurm.util.checked import check, report
from exaslurm.util.user import config_dir
from exaslurm.util.yaml_lines import Document, Problem, nearest, read_document, read_yaml_file

_SUFFIX = ".yaml"
HOST_DIR = Path("/etc/exaslurm/sites")
_PACKAGED = Path(__file__).resolve().parent.parent / "site_configs"


def search_path(environ: Mapping[str, str]) -> list[Path]:
    """Directories with site configs, first match wins: ``$EXASLURM_SITE_CONFIG`` (several
    joined by colons), ``/etc/exaslurm/sites``, the user's own, the ones that come along."""
    given = [Path(part) for part in environ.get("EXASLURM_SITE_CONFIG", "").split(":") if part]
    own = config_dir(environ) / "exaslurm" / "sites"
    return [*given, HOST_DIR, own, _PACKAGED]


def site_names(environ: Mapping[str, str]) -> list[str]:
    """Every site that can be named."""
    return list(site_files(environ))


def site_files(environ: Mapping[str, str]) -> dict[str, Path]:
    """Every site that can be named, and its file."""
    found: dict[str, Path] = {}
    for directory in search_path(environ):
        try:
            files = sorted(directory.glob(f"*{_SUFFIX}"))
        except OSError:
            continue
        for file in files:
            found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def load_site(name: str, environ: Mapping[str, str]) -> Site:
    """The site config of that name, or in that file (``name`` ends in .yaml).

    Raises SiteError with every problem, one a line: ``file:line: key: message (got VALUE);
    did you mean X?``; for an unknown name it names the nearest one and where was looked.
    """
    directories = search_path(environ)
    if name.endswith(_SUFFIX):
        file = Path(name)
        name = file.stem
    else:
        file = _find(name, directories, environ, "")
    document = _read(name, file, directories, environ, (file,))
    document.problems += _host_locks(name, document, directories, environ)
    site, problems = check(Site, document)
    if site is not None:
        problems = cross_problems(site)
        if site.name != name:
            problems.append(
                site.problem("name", f"must be {name!r}, as the file (got {site.name!r})")
            )
    if site is None or problems:
        raise SiteError(report(problems))
    return site


def _find(name: str, directories: list[Path], environ: Mapping[str, str], asked_in: str) -> Path:
    for directory in directories:
        file = directory / f"{name}{_SUFFIX}"
        if "/" not in name and os.path.isfile(file):  # false where one may not look
            return file
    places = ", ".join(str(directory) for directory in directories)
    raise SiteError(
        f"{asked_in}unknown site {name!r}{nearest(name, site_files(environ))}",
        remedy=f"site configs are looked for in {places}",
    )


def _read(
    name: str,
    file: Path,
    directories: list[Path],
    environ: Mapping[str, str],
    seen: tuple[Path, ...],
) -> Document:
    document = read_document(read_yaml_file(file, SiteError), str(file))
    base = document.data.get("extends") if isinstance(document.data, dict) else None
    if not isinstance(base, str):
        return document
    # A config that extends its own name refines the one that it hides.
    below = directories
    if base == name and file.parent in directories:
        below = directories[directories.index(file.parent) + 1 :]
    asked_in = f"{document.place(('extends',))}: extends: "
    base_file = _find(base, below, environ, asked_in)
    if base_file in seen:
        raise SiteError(f"{asked_in}{base!r} extends this site itself")
    under = _read(base, base_file, directories, environ, (*seen, base_file))
    return lay_over(document, under)


def _host_locks(
    name: str, document: Document, directories: list[Path], environ: Mapping[str, str]
) -> list[Problem]:
    """Locks that the host's own file of that name has, where another one was found first."""
    host_file = HOST_DIR / f"{name}{_SUFFIX}"
    read = {place[0] for place in document.places.values()}
    if "/" in name or str(host_file) in read or not os.path.isfile(host_file):
        return []
    return broken_locks(document, _read(name, host_file, directories, environ, (host_file,)))
