"""How a command gets onto a host of the deployment."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exaslurm.core.plan import Plan
from exaslurm.errors import AllocationError, UserError
from exaslurm.site.chaos import Chaos
from exaslurm.slurm.environ import outside

COMMAND_S = 60.0
_NODE_PROGRAM = "exaslurm.chaos.node"


class CommandFailed(AllocationError):
    """A command of a fault did not do what it was for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A node of a cell: its job (of the leader) and the component that it belongs to."""

    node: str
    job_id: str
    het_group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The ways that this site and this deployment offer. ``uid`` is the deployment's user."""

    chaos: Chaos
    plan: Plan
    uid: int
    environ: Mapping[str, str]

    @property
    def is_root(self) -> bool:
        """Whether commands on nodes run as root."""
        return bool(self.chaos.on_node)

    def on_spot(self, spot: Spot, command: Sequence[str]) -> list[str]:
        """The argv that runs a command on a node."""
        if self.plan.layout == "local":
            return list(command)
        if self.chaos.on_node:
            return [*filled(self.chaos.on_node, spot.node), *command]
        return [
            "srun",
            f"--jobid={spot.job_id}",
            *([f"--het-group={spot.het_group}"] if spot.het_group is not None else []),
            *(f"--nodelist={spot.node}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"),
            *("--overlap", "--cpu-bind=none", "--mpi=none", "--export=ALL"),
            *self.plan.srun_args,
            *command,
        ]

    def on_host(self, host: str, command: Sequence[str]) -> list[str]:
        """The argv that runs a command on a host which is none of a job's. UserError if nothing
        gets there."""
        if host == socket.gethostname():
            return list(command)
        if self.chaos.on_node:
            return [*filled(self.chaos.on_node, host), *command]
        raise UserError(
            f"no command gets from here to {host}",
            remedy=f"do this on {host}, or let the site config's chaos.on_node say how",
        )

    def node_program(self, op: str, given: Mapping[str, Any]) -> list[str]:
        """Our program for nodes. The package need not be installed there: it is where it is
        here."""
        root = Path(__file__).resolve().parents[2]
        words = [self.plan.node.python, "-m", _NODE_PROGRAM, op, json.dumps(dict(given))]
        if root.name in ("site-packages", "dist-packages"):
            return words
        return ["env", f"PYTHONPATH={root}", *words]

    def run(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S) -> str:
        """Standard output of a command; CommandFailed with its words if it fails."""
        try:
            done = subprocess.run(
                list(argv),
                env=outside(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"no end of `{_short(argv)}` in {timeout_s:g} s") from None
        except OSError as error:
            raise CommandFailed(f"cannot run {argv[0]!r} here: {error.strerror}") from None
        if done.returncode != 0:
            said = _last(done.stderr) or _last(done.stdout) or f"exit code {done.returncode}"
            raise CommandFailed(f"`{_short(argv)}` failed: {said}")
        return done.stdout

    def arm(self, spot: Spot, op: str, given: Mapping[str, Any]) -> Armed:
        """Our program on a node, which waits for the word. CommandFailed if it does not come
        up."""
        argv = [*self.on_spot(spot, self.node_program(op, given)), "armed"]
        try:
            process = subprocess.Popen(
                argv,
                env=outside(self.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise CommandFailed(f"cannot run {argv[0]!r} here: {error.strerror}") from None
        armed = Armed(spot.node, process)
        armed.wait_ready()
        return armed

    def ask(self, spot: Spot, op: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run our program on a node; its answer. CommandFailed with what it says."""
        argv = self.on_spot(spot, self.node_program(op, given))
        try:
            text = self.run(argv)
        except CommandFailed as error:
            said = _said(str(error))
            if said is None:
                raise
            raise CommandFailed(f"{spot.node}: {said}") from None
        answer: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        return answer

    def find_args(self, cell: str, run_dir: Path) -> dict[str, Any]:
        """What the node program needs to find the init of a cell."""
        return {
            "tmp": self.plan.node.tmp,
            "uid": self.uid,
            "run_dir": str(run_dir),
            "cell": cell,
        }


class Armed:
    """A program on a node that does one thing when it is told to."""

    def __init__(self, node: str, process: subprocess.Popen[str]) -> None:
        self.node = node
        self._process = process

    def wait_ready(self) -> None:
        """Until it waits for the word; CommandFailed if it does not in time."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(COMMAND_S)
        # A line follows at once, or the end: it is written whole.
        if not ready or self._process.stdout.readline().strip() != "ready":
            self.disarm()
            said = self._process.stderr.read() if self._process.stderr is not None else ""
            raise CommandFailed(f"{self.node}: {_last(said) or 'the program there does not start'}")

    def fire(self) -> dict[str, Any]:
        """Have it done; the program's answer. CommandFailed with what it says."""
        try:
            out, err = self._process.communicate("go\n", timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            self.disarm()
            raise CommandFailed(f"{self.node}: no answer in {COMMAND_S:g} s") from None
        if self._process.returncode != 0:
            said = _said(out) or _last(err) or f"exit code {self._process.returncode}"
            raise CommandFailed(f"{self.node}: {said}")
        answer: dict[str, Any] = json.loads(_last(out))
        return answer

    def disarm(self) -> None:
        """End it; nothing is done."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def filled(words: Sequence[str], node: str) -> list[str]:
    """Words of a site's command with the node's name in them."""
    return [word.replace("{node}", node) for word in words]


def owner_of(path: Path) -> int:
    """Whose deployment it is; our own uid where that cannot be seen."""
    try:
        return path.stat().st_uid
    except OSError:
        return os.getuid()


def _short(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    return text if len(text) < 120 else text[:117] + "..."


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _said(text: str) -> str | None:
    """The sentence of our own program in what a failed command printed."""
    begin = text.find('{"error":')
    if begin < 0:
        return None
    try:
        return str(json.loads(text[begin:])["error"])
    except (ValueError, KeyError):
        return None
