"""What a router serves: a deployment, or a list of engines in a file."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from exaslurm.core.codec import loads
from exaslurm.core.limits import MOST_DIRECT_S, Limits
from exaslurm.core.plan import NODE_ADDRESS, Plan, PortPolicy, RouterPolicy
from exaslurm.errors import DeploymentError, UserError
from exaslurm.gateway.options import GatewayOptions
from exaslurm.gateway.tls import TlsFiles
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.replica import ReplicaSource
from exaslurm.rundir import RunDir
from exaslurm.util.clock import Clock
from exaslurm.util.files import make_private_dir, read_text

# A worker's parent needs nothing of these, nor may they delay the start of a router.
if TYPE_CHECKING:
    from exaslurm.keys.clients import ClientKeys
    from exaslurm.router.audit import Audit
    from exaslurm.router.config import RouterConfig
    from exaslurm.util.iothread import IoThread

_DRAIN_S = 60.0
_AUDIT_GIB = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Where and how a router listens. ``drain_s``: how long requests at hand may take at its
    end."""

    bind: str
    port: int
    ports: PortPolicy
    tcp: bool
    uds: Path | None
    uds_mode: int
    tls: TlsFiles | None
    workers: int
    drain_s: float


class RunningSource(ReplicaSource, Protocol):
    """Looks for replicas as long as it runs."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What one serving process is made of."""

    config: RouterConfig
    source: RunningSource
    keys: ClientKeys | None
    audit: Audit | None


class Service(Protocol):
    """``name`` is for people. Routers of equal ``identity`` on one host serve the same, and may
    take over from each other."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def front(self) -> Front: ...

    @property
    def canary(self) -> Path | None:
        """The file that says how requests are divided among versions of a model."""

    @property
    def run_dir(self) -> RunDir | None:
        """Where the router makes itself known, and learns that it shall end."""

    @property
    def has_jobs(self) -> bool:
        """Whether there are jobs that a supervisor can look after."""

    @property
    def job_id(self) -> str:
        """The gateway's job that this runs in; empty elsewhere."""

    def check(self) -> None:
        """ExaslurmError if a process that serves this could not start."""

    def parts(self, files: IoThread) -> Parts:
        """The parts of a serving process, in its event loop. ExaslurmError as of ``check``."""


def service_of(options: GatewayOptions) -> Service:
    """What the options name. ExaslurmError if it cannot be served."""
    if options.run_dir is not None:
        return DeploymentService(options, options.run_dir)
    assert options.engines_file is not None
    return EnginesService(options, options.engines_file)


class DeploymentService:
    """The replicas of a run directory."""

    def __init__(self, options: GatewayOptions, run_dir: RunDir) -> None:
        plan = load_plan(options, run_dir)
        planned = plan.gateway
        tls = TlsFiles(Path(planned.tls.cert), Path(planned.tls.key)) if planned.tls else None
        self.name = plan.deployment
        self.run_dir: RunDir | None = run_dir
        self.identity = os.fspath(run_dir.path)
        self.has_jobs = plan.layout != "local"
        self.job_id = _gateway_job(run_dir)
        self.front = _front(
            options,
            Front(
                bind=_address(plan),
                port=planned.port,
                ports=plan.ports,
                tcp=True,
                uds=None,
                uds_mode=options.uds_mode,
                tls=tls,
                workers=planned.workers,
                drain_s=plan.timeouts.drain_s,
            ),
        )
        self.canary = run_dir.canary if options.canary is None else options.canary
        self._directory = run_dir
        self._policy = planned.policy if options.policy is None else options.policy
        self._hedge_after_s = planned.hedge_after_s
        self._options = options
        self._limits = with_limits(planned.limits, options.limits)
        self._audit_gib = planned.audit_gib if planned.audit else None

    def check(self) -> None:
        self._keys()

    def parts(self, files: IoThread) -> Parts:
        from exaslurm.registry.follow import RegistryFollower

        internal_key, keys = self._keys()
        clock = Clock.of(os.environ)
        source = RegistryFollower(self._directory, internal_key, files=files, clock=clock)
        config = _config(self, self._policy, self._limits, internal_key)
        config = replace(config, hedge_after_s=self._hedge_after_s)
        audit = None
        if self._audit_gib is not None:
            audit = _audit(self._directory.audit, internal_key, self._audit_gib, files)
        return Parts(config, source, keys, audit)

    def _keys(self) -> tuple[str, ClientKeys]:
        from exaslurm.keys.clients import ClientKeys

        internal_key = read_secret(self._directory.internal_key)
        keys = ClientKeys(self._directory, internal_key=internal_key)
        keys.refresh()
        return internal_key, keys


class EnginesService:
    """The engines of a list."""

    def __init__(self, options: GatewayOptions, path: Path) -> None:
        from exaslurm.registry import engines_file

        self.name = path.name
        self.run_dir: RunDir | None = None
        self.identity = os.fspath(path)
        self.has_jobs = False
        self.job_id = ""
        self.front = _front(
            options,
            Front(
                bind="127.0.0.1",
                port=0,
                ports=PortPolicy(),
                tcp=True,
                uds=None,
                uds_mode=options.uds_mode,
                tls=None,
                workers=1,
                drain_s=_DRAIN_S,
            ),
        )
        self.canary = options.canary
        self._options = options
        self._limits = with_limits(Limits(), options.limits)
        self._engines = engines_file.load(path)

    def check(self) -> None:
        self._keys()
        if self._options.audit is not None:
            make_private_dir(self._options.audit)

    def parts(self, files: IoThread) -> Parts:
        from exaslurm.registry.probe import PolledSource

        source = PolledSource(self._engines, pollers=self.front.workers, files=files)
        config = _config(self, self._options.policy or "affinity", self._limits, None)
        directory = self._options.audit
        audit = None if directory is None else _audit(directory, None, _AUDIT_GIB, files)
        return Parts(config, source, self._keys(), audit)

    def _keys(self) -> ClientKeys | None:
        from exaslurm.gateway.keys import client_keys

        keys = client_keys(self._options, os.environ)
        if keys is not None:
            keys.refresh()
        return keys


def _audit(directory: Path, secret: str | None, gib: float, files: IoThread) -> Audit:
    from exaslurm.router.audit import Audit

    return Audit(directory, secret=secret, max_total_bytes=int(gib * 2**30), files=files)


def load_plan(options: GatewayOptions, run_dir: RunDir) -> Plan:
    """The plan of the asked generation, or of the wanted one."""
    run_dir = run_dir.require()
    if options.generation is not None:
        generation = run_dir.generation(options.generation)
    else:
        wanted = run_dir.current()
        if wanted is None:
            raise DeploymentError(
                f"{run_dir.path} holds no plan", remedy="submit the deployment first"
            )
        generation = wanted
    return loads(Plan, read_text(generation.plan), where=str(generation.plan))


def with_limits(limits: Limits, settings: tuple[str, ...]) -> Limits:
    """The limits with ``NAME=VALUE`` settings in place; UserError names a wrong one."""
    known = {field.name: field for field in fields(Limits)}
    for setting in settings:
        name, _, text = setting.partition("=")
        field = known.get(name)
        if field is None:
            raise UserError(
                f"--limit {setting}: there is no limit {name!r}",
                remedy=f"NAME=VALUE with one of {', '.join(known)}",
            )
        try:
            value = float(text) if field.type == "float" else int(text)
        except ValueError:
            raise UserError(f"--limit {setting}: {text!r} is no number") from None
        if not value >= 0 or (value == 0 and name not in ("max_waiting", "direct_s")):
            raise UserError(f"--limit {setting}: give a number above 0")
        if name == "direct_s" and value > MOST_DIRECT_S:
            raise UserError(f"--limit {setting}: {MOST_DIRECT_S:g} is the most")
        limits = replace(limits, **{name: value})  # type: ignore[arg-type]
    return limits


def _gateway_job(run_dir: RunDir) -> str:
    """The id of the job that we run in, if it is one of the deployment's gateway."""
    name = os.environ.get("SLURM_JOB_NAME", "")
    ours = name.startswith(f"exa-{run_dir.deployment}-gateway")
    return os.environ.get("SLURM_JOB_ID", "") if ours else ""


def _address(plan: Plan) -> str:
    """Where to listen. In a job, the others must reach it; on any other host nobody has asked for
    more than the host itself. PreflightFailed if the site's network interface is not there."""
    if plan.gateway.bind != NODE_ADDRESS:
        return plan.gateway.bind
    if not os.environ.get("SLURM_JOB_ID"):
        return "127.0.0.1"
    from exaslurm.facts.address import node_address

    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return node_address(plan.node.interface, node, plan.node.host_suffix).address


def _front(options: GatewayOptions, planned: Front) -> Front:
    """What is planned, with the options in place of it."""
    tls = planned.tls
    if options.tls_cert is not None and options.tls_key is not None:
        tls = TlsFiles(options.tls_cert, options.tls_key)
    return replace(
        planned,
        bind=planned.bind if options.bind is None else options.bind,
        port=planned.port if options.port is None else options.port,
        tcp=options.tcp,
        uds=options.uds,
        tls=tls,
        workers=planned.workers if options.workers is None else options.workers,
    )


def _config(
    service: Service, policy: RouterPolicy, limits: Limits, internal_key: str | None
) -> RouterConfig:
    from exaslurm.router.config import RouterConfig
    from exaslurm.router.direct import DirectSettings

    return RouterConfig(
        deployment=service.name,
        internal_key=internal_key,
        policy=policy,
        limits=limits,
        processes=service.front.workers,
        max_body_bytes=limits.max_body_bytes,
        direct=DirectSettings(max_s=limits.direct_s),
    )
