"""All checks of a site, in the order in which a deployment meets them."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from exaslurm import __version__
from exaslurm.doctor import host_checks, slurm_checks
from exaslurm.doctor.model import Check, Report, skipped
from exaslurm.rundir import state_root
from exaslurm.site.model import Site
from exaslurm.site.paths import resolve
from exaslurm.slurm.client import Slurm
from exaslurm.util.user import user_and_home


def examine(site: Site, environ: Mapping[str, str], *, python: str) -> Report:
    """Run every check that this site needs. ``python`` is what nodes run where the site config
    names none. Takes seconds; asks Slurm a handful of questions; leaves nothing behind."""
    checks = (*_slurm(site, environ), *_python(site, environ, python), *_host(site, environ))
    return Report(site=site.name, host=socket.gethostname(), checks=checks)


def _slurm(site: Site, environ: Mapping[str, str]) -> Iterator[Check]:
    if site.scheduler == "local":
        yield skipped("slurm", "the site does without")
        return
    path = environ.get("PATH")
    yield slurm_checks.check_commands(path)
    if shutil.which("scontrol", path=path) is None:
        return
    slurm = Slurm(environ, timeout_s=15.0)
    yield slurm_checks.check_version(slurm)
    controller = slurm_checks.check_controller(slurm)
    yield controller
    if controller.outcome == "fail":
        yield skipped("slurm settings", "slurmctld does not answer")
        return
    config = slurm_checks.read_config(slurm)
    yield slurm_checks.check_hetjobs(config, wanted=site.slurm.hetjobs)
    yield slurm_checks.check_job_age(config)
    partitions = _partitions(site)
    yield from slurm_checks.check_partitions(slurm, partitions)
    names = slurm_checks.node_names(slurm, partitions)
    yield host_checks.check_names([socket.gethostname(), *names])


def _partitions(site: Site) -> list[str]:
    named = [kind.partition for kind in site.node_kinds.values() if kind.partition]
    return list(dict.fromkeys([*named, *site.partitions]))


def _python(site: Site, environ: Mapping[str, str], python: str) -> Iterator[Check]:
    chosen = site.python and _resolved(site.python, environ)
    yield from host_checks.check_python(chosen or python, __version__)


def _host(site: Site, environ: Mapping[str, str]) -> Iterator[Check]:
    state = state_root(environ, site.state_dir(environ))
    yield host_checks.check_directory(
        "state directory", state, min_free_gib=host_checks.MIN_STATE_FREE_GIB
    )
    shared = Path(_resolved(site.storage.shared, environ))
    yield host_checks.check_directory(
        "shared directory", shared, min_free_gib=host_checks.MIN_SHARED_FREE_GIB
    )
    yield host_checks.check_tmp(_resolved(site.storage.ram, environ))
    yield host_checks.check_interface(site.interface)
    yield host_checks.check_ports(site.ports.first, site.ports.last)
    if site.scheduler == "local":
        yield host_checks.check_names([socket.gethostname()])
    yield from host_checks.check_limits()
    yield host_checks.check_proxy(environ)


def _resolved(text: str, environ: Mapping[str, str]) -> str:
    user, home = user_and_home(environ)
    return resolve(text, user=user, home=home)
