"""The preflight of a node: what it can do, told to the controller before anything runs on it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from exaslurm import __version__
from exaslurm.agent.settings import Settings
from exaslurm.core.checks import Check, NodeChecks, NodeNeeds, failed
from exaslurm.core.codec import dumps, loads
from exaslurm.core.facts import NodeFacts
from exaslurm.errors import StateError
from exaslurm.preflight.host import Host
from exaslurm.preflight.node import examine
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

# Each look at a directory has a deadline of its own; this is for all of it.
LIMIT_S = 90.0
_SHM_ENGINES_MIB = 256


class Preflight:
    """Examines the node once in the job's life: a restarted agent finds ports and /dev/shm in use
    by its own engines, so it goes by what the first one found."""

    def __init__(self, settings: Settings, facts: NodeFacts, done: Callable[[], None]) -> None:
        self._settings = settings
        self._facts = facts
        self._done = done
        self._kept = settings.node_dir / "preflight.json"
        self.result: NodeChecks | None = None

    async def run(self) -> None:
        """Examine, keep what did not pass, tell that it is done."""
        try:
            text = read_text(self._kept)
            self.result = loads(NodeChecks, text, where=str(self._kept))
        except StateError:
            self.result = self._told(await self._examined())
            try:
                write_atomic(self._kept, dumps(self.result))
            except StateError as error:
                log.warning("%s", error)
        self._done()

    async def _examined(self) -> NodeChecks:
        host = dataclasses.replace(Host.here(self._settings.environ), name=self._facts.node)
        needs = needs_of(self._settings, self._facts)
        # Known before the controller stops waiting for nodes.
        limit_s = min(LIMIT_S, self._settings.plan.timeouts.nodes_s / 2)
        # A thread of its own: what hangs in it must not keep the agent from its files, nor from
        # its end.
        try:
            return await IoThread("preflight").run(
                lambda: examine(needs, host, topology=self._facts.topology, speed=False),
                timeout_s=limit_s,
            )
        except StateError:
            return _one(self._facts.node, f"the checks did not end within {limit_s:g} s")
        except Exception:  # a check that nobody foresaw must not keep a good node out
            log.exception("preflight")
            return NodeChecks(host=self._facts.node, checks=())

    def _told(self, found: NodeChecks) -> NodeChecks:
        """Without what passed: reports are sent every few seconds."""
        bad = tuple(check for check in found.checks if check.outcome in ("warn", "fail"))
        for check in bad:
            log.warning("preflight: %s: %s", check.outcome, check.sentence())
        log.info("preflight: %d checks, %d did not pass", len(found.checks), len(bad))
        return dataclasses.replace(found, checks=bad)


def _one(node: str, value: str) -> NodeChecks:
    remedy = "a file system or a name server does not answer there: `exaslurm doctor --job`"
    check: Check = failed("node.answer", value, remedy)
    return NodeChecks(host=node, checks=(check,))


def needs_of(settings: Settings, facts: NodeFacts) -> NodeNeeds:
    """What this node of the cell must offer, as the plan has it."""
    plan, node = settings.plan, settings.plan.node
    engines = settings.runs_engines
    vllm = engines and any(model.engine.kind == "vllm" for model in plan.models)
    on_gpus = any(m.engine.kind == "vllm" and m.engine.device != "cpu" for m in plan.models)
    shm_mib = (plan.ray.object_store_mib if plan.ray.enabled else 0) + (
        _SHM_ENGINES_MIB if vllm else 0
    )
    return NodeNeeds(
        version=__version__,
        interface=node.interface,
        host_suffix=node.host_suffix,
        first_port=plan.ports.first,
        last_port=plan.ports.last,
        port_block=0,  # the agent has found its block
        state=str(settings.run_dir.path),
        shared=node.shared,
        local=None,  # where there is none, caches go to `tmp`
        tmp=node.tmp,
        shm_mib=shm_mib,
        gpus=settings.component.gpus_per_node if engines and on_gpus else None,
        vllm=vllm,
        ray=plan.ray.enabled,
        hcas=node.fabric.hcas if engines and on_gpus else (),
        # With an interface named, nodes go by addresses.
        names=() if node.interface is not None else (facts.node + node.host_suffix,),
    )
