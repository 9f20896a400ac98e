"""Finding a deployment by its name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

from exaslurm.errors import DeploymentError, ExaslurmError
from exaslurm.rundir import RunDir, state_root
from exaslurm.util.bounded import FILES_TIMEOUT_S, within


def find_run_dir(name: str, environ: Mapping[str, str], *, site: str | None = None) -> RunDir:
    """The run directory of a deployment.

    ``name`` is the deployment's name, its run directory, or a spec file. Without ``site``, every
    known site's state directory is looked through, so that nobody has to say again where a
    deployment was submitted. DeploymentError, with the names there are, if it is not found;
    StateError if a file system does not answer.
    """
    work = functools.partial(_find, name, environ, site)
    return within(FILES_TIMEOUT_S, work, f"looking for deployment {name!r}")


def _find(name: str, environ: Mapping[str, str], site: str | None) -> RunDir:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        from exaslurm.spec.load import load_spec

        spec = load_spec(path)
        name, site = spec.deployment, site or spec.site
    elif "/" in name:
        if path.is_dir() and (path / "gen").is_dir():
            return RunDir(path.absolute())
        raise DeploymentError(f"{name} is not the run directory of a deployment")
    roots = state_roots(environ, site=site)
    found = [RunDir.of(root, name) for root in roots if (root / name / "gen").is_dir()]
    if len(found) > 1:
        places = ", ".join(str(run_dir.path) for run_dir in found)
        raise DeploymentError(
            f"several deployments are named {name!r}: {places}",
            remedy="choose one with --site, or give its directory",
        )
    if found:
        return found[0]
    known = ", ".join(deployments(environ, site=site)) or "there are none"
    looked = ", ".join(f"{root}{'' if root.is_dir() else ' (not there)'}" for root in roots)
    raise DeploymentError(f"no deployment {name!r} in {looked}", remedy=f"known: {known}")


def deployments(environ: Mapping[str, str], *, site: str | None = None) -> list[str]:
    """Names of all deployments that can be found, sorted."""
    names: set[str] = set()
    for root in state_roots(environ, site=site):
        with contextlib.suppress(OSError):
            names.update(path.name for path in root.iterdir() if (path / "gen").is_dir())
    return sorted(names)


def state_roots(environ: Mapping[str, str], *, site: str | None = None) -> list[Path]:
    """Where deployments may be: ``EXASLURM_HOME`` alone if it is set, else the state directory
    of the site (of each known site), without repetition."""
    if environ.get("EXASLURM_HOME"):
        return [state_root(environ, None)]
    from exaslurm.site.load import load_site, site_names

    roots: list[Path] = []
    for name in [site] if site else site_names(environ):
        try:
            root = state_root(environ, load_site(name, environ).state_dir(environ))
        except ExaslurmError:
            if site:
                raise
            continue  # a broken site file of somebody else is not in the way of this look-up
        if root not in roots:
            roots.append(root)
    return roots
