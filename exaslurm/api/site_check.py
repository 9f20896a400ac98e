"""Checking a site config: not only its keys, but every script that comes of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.api.site_samples import Sample, sample_plan, samples
from exaslurm.core.plan import Plan
from exaslurm.errors import UserError
from exaslurm.render.scripts import render_script
from exaslurm.render.templates import search_path
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from exaslurm.site.paths import resolve
from exaslurm.util.user import user_and_home

_RUN_DIR = Path("/home/ada/.local/state/exaslurm/sample")
_GEN_DIR = _RUN_DIR / "gen" / "1"
_LINT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheck:
    """What came of it. ``scripts`` by file name; ``linters`` are those that looked at them."""

    name: str
    site: Site | None
    problems: tuple[str, ...]
    scripts: Mapping[str, str]
    linters: tuple[str, ...]


def check_site(name: str, environ: Mapping[str, str]) -> SiteCheck:
    """Read a site config (a name or a file), render it for every kind of worker, layout and
    container with the host's own templates, and lint the scripts."""
    try:
        site = load_site(name, environ)
    except UserError as error:
        said = tuple(str(error).splitlines())
        return SiteCheck(name=name, site=None, problems=said, scripts={}, linters=())
    problems: list[str] = []
    scripts: dict[str, str] = {}
    if site.scheduler == "slurm":
        for sample, text in rendered(site, environ):
            if isinstance(text, UserError):
                problems += [f"{sample}: {line}" for line in str(text).splitlines()]
            else:
                scripts[sample.file_name] = text
    linters = _linters(environ) if scripts else {}
    for linter in linters.values():
        problems += _lint(linter, scripts)
    return SiteCheck(
        name=name, site=site, problems=tuple(problems), scripts=scripts, linters=tuple(linters)
    )


def rendered(site: Site, environ: Mapping[str, str]) -> Iterator[tuple[Sample, str | UserError]]:
    """A script for each sample of a site, or why there is none."""
    dirs = search_path(environ)
    if site.templates is not None:
        user, home = user_and_home(environ)
        dirs = (*dirs, Path(resolve(site.templates, user=user, home=home)))
    for sample in samples(site):
        yield sample, _script_or_error(site, sample, dirs)


def _script_or_error(site: Site, sample: Sample, dirs: Sequence[Path]) -> str | UserError:
    try:
        return sample_script(sample_plan(site, sample), dirs)
    except UserError as error:
        return error


def sample_script(plan: Plan, template_dirs: Sequence[Path] = ()) -> str:
    """The script of a sample's only cell."""
    return render_script(plan, plan.cells[0], _GEN_DIR, _RUN_DIR, template_dirs)


def _linters(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Linters that are on PATH, and how to call them with files."""
    known = {"bash": ["-n"], "shellcheck": ["--format=gcc"]}
    found = {name: shutil.which(name, path=environ.get("PATH")) for name in known}
    return {name: [path, *known[name]] for name, path in found.items() if path is not None}


def _lint(argv: Sequence[str], scripts: Mapping[str, str]) -> list[str]:
    """What a linter has to say; bash looks at one file at a time."""
    with tempfile.TemporaryDirectory(prefix="exaslurm-") as directory:
        files = [Path(directory) / name for name in scripts]
        for file in files:
            file.write_text(scripts[file.name], encoding="utf-8")
        batches = [[file] for file in files] if argv[-1] == "-n" else [files]
        said: list[str] = []
        for batch in batches:
            done = subprocess.run(
                [*argv, *map(str, batch)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LINT_TIMEOUT_S,
            )
            if done.returncode != 0:
                lines = (done.stdout + done.stderr).replace(f"{directory}/", "").splitlines()
                said += lines or [f"{argv[0]}: exit code {done.returncode}"]
        return said
