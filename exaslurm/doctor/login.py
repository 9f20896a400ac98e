"""The login node: Slurm, the nodes' Python, directories, network, limits."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from collections.abc import Iterator, Mapping

from exaslurm.core.checks import Check, NodeNeeds, passed, skipped, warned
from exaslurm.doctor import slurm_checks
from exaslurm.doctor.model import HostReport
from exaslurm.doctor.needs import needs_of
from exaslurm.preflight import limits, network, node, software, storage
from exaslurm.preflight.host import Host
from exaslurm.site.model import Site
from exaslurm.site.paths import resolve
from exaslurm.slurm.client import Slurm
from exaslurm.util.user import user_and_home


def examine_login(
    site: Site, environ: Mapping[str, str], *, python: str, host: Host | None = None
) -> HostReport:
    """Run every check that this site needs here. ``python`` is what nodes run where the site config
    names none. Takes seconds; asks Slurm a handful of questions; leaves nothing behind."""
    host = host or dataclasses.replace(Host.here(environ), name=socket.gethostname())
    needs = needs_of(site, environ)
    checks = (
        *_slurm(site, environ, host),
        *_python(site, environ, python, needs),
        *_host(site, environ, needs, host),
    )
    return HostReport(host=host.name, role="login", checks=checks)


def _slurm(site: Site, environ: Mapping[str, str], host: Host) -> Iterator[Check]:
    if site.scheduler == "local":
        yield skipped("slurm.commands", "the site does without")
        yield network.check_names(host, [host.name])
        return
    path = environ.get("PATH")
    yield slurm_checks.check_commands(path)
    if shutil.which("scontrol", path=path) is None:
        yield network.check_names(host, [host.name])
        return
    slurm = Slurm(environ, timeout_s=15.0)
    yield slurm_checks.check_version(slurm)
    controller = slurm_checks.check_controller(slurm)
    yield controller
    names: list[str] = []
    if controller.outcome == "fail":
        yield skipped("slurm.hetjobs", "slurmctld does not answer")
    else:
        config = slurm_checks.read_config(slurm)
        yield slurm_checks.check_hetjobs(config, wanted=site.slurm.hetjobs)
        yield slurm_checks.check_job_age(config)
        partitions = partitions_of(site)
        yield from slurm_checks.check_partitions(slurm, partitions)
        names = slurm_checks.node_names(slurm, partitions)
    yield network.check_names(host, [host.name, *names])


def partitions_of(site: Site) -> list[str]:
    """Every partition that the site config names."""
    named = [kind.partition for kind in site.node_kinds.values() if kind.partition]
    return list(dict.fromkeys([*named, *site.partitions]))


def node_python(site: Site, environ: Mapping[str, str], python: str) -> str:
    """The Python of the nodes; ``python`` where the site config names none."""
    user, home = user_and_home(environ)
    return resolve(site.python, user=user, home=home) if site.python else python


def _python(
    site: Site, environ: Mapping[str, str], python: str, needs: NodeNeeds
) -> Iterator[Check]:
    chosen = node_python(site, environ, python)
    try:
        found = software.probe(chosen)
    except ValueError as error:
        remedy = (
            "if nodes see another file system that is fine (`doctor --partition` looks there); "
            "else set `python` in the site config"
        )
        yield warned("python.version", str(error), remedy)
        return
    needed = {"vllm": False, "ray": False}
    yield from software.check_versions(found, version=needs.version, needed=needed, python=chosen)


def _host(site: Site, environ: Mapping[str, str], needs: NodeNeeds, host: Host) -> Iterator[Check]:
    for ident, directory, free_gib in (
        ("storage.state", needs.state, node.MIN_STATE_GIB),
        ("storage.shared", needs.shared, node.MIN_SHARED_GIB),
    ):
        check = storage.check_directory(host, ident, directory, min_free_gib=free_gib)
        yield check
        if ident == "storage.shared" and check.outcome in ("pass", "warn"):
            yield storage.check_speed(host, "storage.speed", directory)
    yield _short(needs.tmp)
    yield _here_or_there(network.check_interface(host, site.interface))
    yield network.check_port_range(host, needs.first_port, needs.last_port)
    yield network.check_ports_free(host, needs.first_port, needs.last_port, needs.port_block)
    yield from limits.check_limits(host, rdma=False)
    yield limits.check_clock(host)
    yield check_proxy(environ)


def _short(tmp: str) -> Check:
    """Whether the nodes' directory is short enough; whether it is there, the nodes must say."""
    if len(tmp) > storage.MAX_TMP_CHARS:
        return storage.check_tmp(tmp, Host(name=""))
    return passed("tmp.path", tmp)


def _here_or_there(check: Check) -> Check:
    """What the nodes have and the login node lacks is worth a look, no more."""
    if check.outcome != "fail":
        return check
    remedy = "fine if only the nodes have it (`doctor --partition` looks there); else mend the site"
    return warned(check.id, check.value, remedy, subject=check.subject)


def check_proxy(environ: Mapping[str, str]) -> Check:
    """Programs that use a web proxy still reach the router directly."""
    ident = "net.proxy"
    names = ("http_proxy", "HTTP_PROXY", "all_proxy")
    if not any(environ.get(name) for name in names):
        return skipped(ident, "none is set")
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    if any(item.strip() in ("*", "localhost", "127.0.0.1") for item in direct):
        return passed(ident, "set, not for this host")
    return warned(
        ident,
        "http_proxy is set and no_proxy does not name localhost",
        "OpenAI clients would ask the proxy for the router: "
        "export no_proxy=localhost,127.0.0.1,$no_proxy",
    )
