"""The Python of the batch script: one ``srun`` per component, watched until the cell's end.

Runs on the first node of component 0, which is the cell's head. It exits as the head's init does:
0 after a stop, something else after a failure that it names on stderr (the job's output file).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from exaslurm.bootstrap import containers
from exaslurm.bootstrap.allocation import Allocation, check_allocation, read_allocation
from exaslurm.bootstrap.marker import begin, make_marker
from exaslurm.bootstrap.step import STOP, Step
from exaslurm.core import ports
from exaslurm.core.codec import dumps, loads
from exaslurm.core.container import SRUN_RUNTIMES
from exaslurm.core.exclusion import EndedTasks
from exaslurm.core.plan import CellPlan, ComponentPlan, Plan
from exaslurm.core.submission import JobNotice, Submission, why_stray
from exaslurm.errors import AllocationError, ExaslurmError, ExitCode, SlurmError, StateError
from exaslurm.facts.address import node_address
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm import environ as slurm_environ
from exaslurm.slurm import topology
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.srun import step_argv
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import LogThread, write_on
from exaslurm.util.ports import first_taken
from exaslurm.util.waiting import within

EX_TEMPFAIL = 75
BLOCK_TRIES = 3
# init drains for 20 s and needs up to 13 s more to see its processes end.
INIT_END_S = 40.0
SCONTROL_S = 10.0
_POLL_S = 1.0
_FILE_S = 10.0
PACKAGE = Path(__file__).resolve().parent.parent

log = logging.getLogger("exaslurm.launch")


def say(text: str) -> None:
    """One line for the job's output file."""
    log.info("%s", text)


def load_plan(gen_dir: GenerationDir) -> Plan:
    """The plan of a generation; AllocationError if it is not what was planned."""
    plan = loads(Plan, read_text(gen_dir.plan), where=str(gen_dir.plan))
    if not plan.is_sealed():
        raise AllocationError(
            f"{gen_dir.plan} was changed after it was made: its hash does not fit",
            remedy="change the spec and run `exaslurm render` or `exaslurm submit` again",
        )
    return plan


class Launch:
    """One run of the batch script."""

    def __init__(
        self, run_dir: RunDir, gen_dir: GenerationDir, plan: Plan, cell: CellPlan,
        allocation: Allocation, environ: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.run_dir = run_dir
        self.gen_dir = gen_dir
        self.plan = plan
        self.cell = cell
        self.allocation = allocation
        self.environ = slurm_environ.for_steps(environ)
        container = plan.node.container
        if container is not None and container.runtime in SRUN_RUNTIMES:
            self.environ = containers.child_environ(plan, self.environ)
        self.steps: list[Step] = []
        self.stopping = asyncio.Event()
        self._next_block = 0
        self._files = IoThread("files")
        write_on(self._files)
        self._told_ended: dict[str, str] = {}

    async def run(self) -> int:
        """Start the steps; again with other ports if the head found its own taken."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        loop.add_signal_handler(signal.SIGINT, self._on_terminate)
        loop.add_signal_handler(signal.SIGUSR1, self._on_notice)
        for _ in range(BLOCK_TRIES):
            base = self._free_block()
            code = await self._run_steps(base)
            if code != EX_TEMPFAIL or self.stopping.is_set():
                return self._verdict(code)
            say(f"the ports from {base} on were taken in the meantime: trying another block")
        say(f"gave up after {BLOCK_TRIES} port blocks; site.ports says which there are")
        return 1

    def _free_block(self) -> int:
        """First port of a block whose head ports are free on this host, which is the head."""
        policy = self.plan.ports
        blocks = max(1, (policy.last - policy.first + 1) // policy.block)
        taken = 0
        for _ in range(blocks):
            base = ports.block_base(policy, int(self.allocation.job_id), self._next_block)
            self._next_block += 1
            found = first_taken(range(base + ports.CONTROLLER, base + ports.AGENT + 1))
            if found is None:
                return base
            taken = found
        raise AllocationError(
            f"no free block of ports in {policy.first}-{policy.last} on {self.allocation.head} "
            f"(port {taken} is taken, for one)",
            remedy="widen `ports` in the site config",
        )

    async def _run_steps(self, port_base: int) -> int:
        node = self.plan.node
        head_host = node_address(node.interface, self.allocation.head, node.host_suffix).address
        say(f"head {self.allocation.head} ({head_host}), ports from {port_base}")
        await self._tell_ended({})
        self.steps = [
            Step(
                f"component {component.het_group}", self._argv(component, head_host, port_base), say
            )
            for component in self.cell.components
        ]
        tasks: list[asyncio.Task[Any]] = []
        try:
            await asyncio.gather(*(step.start(self.environ) for step in self.steps))
            waits = [asyncio.create_task(step.wait()) for step in self.steps]
            watch = asyncio.create_task(self._watch(self.steps[0], head_host, port_base))
            tasks = [*waits, watch]
            await asyncio.wait([waits[0], watch], return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                say(watch.result())
                return 1
            code = waits[0].result()
            say(f"the head's step ended with {code}")
            if code == 0:
                await self._others_drain(waits[1:])
            return code
        finally:
            await asyncio.gather(*(step.end(grace_s=INIT_END_S) for step in self.steps))
            for task in tasks:
                task.cancel()

    async def _others_drain(self, waits: Sequence[asyncio.Task[int]]) -> None:
        """After a stop the other nodes were told too, and may still finish what they do."""
        if waits:
            await asyncio.wait(waits, timeout=self.plan.timeouts.drain_s + INIT_END_S)

    async def _watch(self, head: Step, head_host: str, port_base: int) -> str:
        """Returns, with the reason, when the cell cannot come to anything."""
        deadline = time.monotonic() + self.plan.timeouts.nodes_s
        came_up = False
        told: set[str] = set()
        while True:
            await asyncio.sleep(_POLL_S)
            for step in self.steps:
                if step.waiting_s() > self.plan.timeouts.nodes_s and step.name not in told:
                    told.add(step.name)
                    say(
                        f"{step.name}: Slurm has not started the step for "
                        f"{step.waiting_s():.0f} s; srun says: {step.last_words()}. Another step "
                        "of this job may hold the node's CPUs, memory or GPUs"
                    )
                    if step is head:
                        return "the head's step does not start: ending the job"
                elif step.returncode not in (None, 0) and not (step is head or step.name in told):
                    told.add(step.name)
                    say(f"{step.name} ended with {step.returncode}: going on without it")
            await self._tell_ended({node: how for s in self.steps for node, how in s.ended.items()})
            if 0 in head.failed_tasks:
                return "the head's init ended: ending the job"
            if not came_up:
                came_up = await _accepts(head_host, port_base + ports.CONTROLLER)
                if not came_up and time.monotonic() > deadline:
                    return (
                        f"no controller at {head_host}:{port_base + ports.CONTROLLER} after "
                        f"{self.plan.timeouts.nodes_s:.0f} s: ending the job; see "
                        f"{self.gen_dir.logs(self.cell.name)}"
                    )

    async def _tell_ended(self, ended: dict[str, str]) -> None:
        """Let the controller know that these nodes will not report, so that it does not wait for
        them; by a file, as it may be anywhere on its way."""
        if ended == self._told_ended:
            return
        path = self.gen_dir.ended(self.cell.name)
        text = dumps(EndedTasks(nodes=ended))
        try:
            await self._files.run(write_atomic, path, text, timeout_s=_FILE_S)
            self._told_ended = ended
        except StateError as error:
            log.warning("%s", error)

    def _argv(self, component: ComponentPlan, head_host: str, port_base: int) -> list[str]:
        options = [
            "--gen-dir", str(self.gen_dir.path), "--run-dir", str(self.run_dir.path),
            "--cell", self.cell.name, "--het-group", str(component.het_group),
            "--head-host", head_host, "--port-base", str(port_base),
        ]  # fmt: skip
        words, command = self._into_container(component, options)
        return step_argv(
            component,
            command,
            het=len(self.allocation.components) > 1,
            output=str(self.gen_dir.logs(self.cell.name) / "%N.init.log"),
            nodes=len(self.allocation.components[component.het_group].nodes),
            extra=(*self.plan.srun_args, *words),
        )

    def _into_container(
        self, component: ComponentPlan, options: list[str]
    ) -> tuple[tuple[str, ...], list[str]]:
        """Options of srun and the command that start init, in the site's container or outside."""
        node = self.plan.node
        if node.container is None:
            return (), [node.python, "-m", "exaslurm.bootstrap.init", *options]
        if node.container.runtime not in SRUN_RUNTIMES:
            return (), [node.host_python, "-m", "exaslurm.bootstrap.enter", *options]
        with contextlib.suppress(OSError):  # elsewhere it is made when there is something for it
            os.makedirs(node.shared, exist_ok=True)
        binds = containers.mounts(self.plan, self.run_dir.path, self.gen_dir.path, PACKAGE)
        edf = self.gen_dir.container(self.cell.name)
        if node.container.runtime == "container-engine":
            write_atomic(edf, containers.edf_text(self.plan, binds))
        words = containers.srun_words(self.plan, component, binds, edf)
        return words, containers.init_command(self.plan, options)

    def _verdict(self, code: int) -> int:
        try:
            reason = self.gen_dir.failure(self.cell.name).read_text(encoding="utf-8").strip()
        except OSError:
            return code if code >= 0 else 128 - code
        say(f"the cell failed: {reason}")
        return code or 1

    def _on_terminate(self) -> None:
        self.stopping.set()
        say("got SIGTERM: telling the tasks to stop")
        for step in self.steps:
            step.signal(STOP)

    def _on_notice(self) -> None:
        """Slurm warns that the job will end soon (``--signal``): the supervisor is told."""
        self._forward(signal.SIGUSR1)
        notice = JobNotice(signal="USR1", time_s=time.time())
        self._notice = asyncio.create_task(self._leave(notice))

    async def _leave(self, notice: JobNotice) -> None:
        path = self.gen_dir.notice(self.cell.name)
        try:
            await self._files.run(write_atomic, path, dumps(notice), timeout_s=_FILE_S)
        except StateError as error:
            log.warning("%s", error)

    def _forward(self, number: signal.Signals) -> None:
        say(f"got {number.name}: passing it on")
        for step in self.steps:
            step.signal(number)


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await within(asyncio.open_connection(host, port), 2.0)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the batch script's last line."""
    parser = argparse.ArgumentParser(prog="exaslurm.bootstrap.launch")
    parser.add_argument("--gen-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    return parser.parse_args(argv)


async def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Check, mark, launch; exit code of the job."""
    started_s = time.time()
    gen_dir, run_dir = GenerationDir(options.gen_dir), RunDir(options.run_dir)
    plan = load_plan(gen_dir)
    try:
        cell = plan.cell(options.cell)
    except KeyError:
        raise AllocationError(f"{gen_dir.plan} has no cell {options.cell!r}") from None
    allocation = read_allocation(environ)
    stray = why_stray(_submission(gen_dir, cell.name), allocation.job_name, allocation.job_id)
    if stray is not None:
        say(f"job {allocation.job_id} ({allocation.job_name}) ends without serving: {stray}")
        return int(ExitCode.OK)
    for note in check_allocation(plan, cell, allocation):
        say(note)
    run_dir.make()
    gen_dir.make((cell.name,))
    ensure_secrets(run_dir)
    allocation = replace(allocation, start_s=_start_s(allocation, environ))
    switches, features = _surroundings(plan, cell, allocation, environ)
    marker = make_marker(
        plan, cell.name, allocation, started_s=started_s, switches=switches, features=features
    )
    begin(gen_dir, marker)
    return await Launch(run_dir, gen_dir, plan, cell, allocation, environ).run()


def _start_s(allocation: Allocation, environ: Mapping[str, str]) -> float | None:
    """When Slurm started the job, which its environment tells from 23.02 on; None if Slurm does
    not tell in time."""
    if allocation.start_s is not None:
        return allocation.start_s
    try:
        found = Slurm(environ, timeout_s=SCONTROL_S).jobs([allocation.job_id])
    except SlurmError:
        return None
    return found[allocation.job_id].start_s


def _submission(gen_dir: GenerationDir, cell: str) -> Submission | None:
    """What was written down of the submission of this turn; None if nothing can be read."""
    path = gen_dir.submission(cell)
    try:
        return loads(Submission, read_text(path), where=str(path))
    except StateError:
        return None


def _surroundings(
    plan: Plan, cell: CellPlan, allocation: Allocation, environ: Mapping[str, str]
) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """Switches above the nodes and their features, as far as Slurm tells in time. Without an
    answer a node has at least the features that were asked for."""
    nodes = [node for component in allocation.components for node in component.nodes]
    slurm = Slurm(environ, timeout_s=SCONTROL_S)
    switches = topology.look_up(slurm, nodes, site=plan.switches, environ=environ)
    if not any("feature" in text for model in plan.models for text in model.constraints):
        return switches, {}
    asked = {
        node: features
        for component, part in zip(allocation.components, cell.components, strict=True)
        if (features := _asked_features(part))
        for node in component.nodes
    }
    return switches, {**asked, **topology.look_up_features(slurm, nodes)}


def _asked_features(component: ComponentPlan) -> tuple[str, ...]:
    asked = dict(component.directives).get("constraint") or ""
    words = asked.split("&")
    return tuple(words) if all(re.fullmatch(r"[\w.:=+-]+", word) for word in words) else ()


def main(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """The process; an error of ours is one line."""
    options = parse(argv)
    os.umask(0o077)
    lines = LogThread("launch")
    try:
        code = asyncio.run(run(options, environ))
    except ExaslurmError as error:
        say(str(error) + (f" ({error.remedy})" if error.remedy else ""))
        code = int(error.exit_code)
    except Exception:
        log.exception("unforeseen")
        code = 1
    lines.close()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
