"""Breaking things: each fault promises how it is mended before it is done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exaslurm.chaos.kinds import Kind
from exaslurm.chaos.reach import Armed, CommandFailed, Reach, Spot, filled
from exaslurm.chaos.undo import Mending
from exaslurm.chaos.victims import Victim
from exaslurm.errors import UserError
from exaslurm.site.chaos import Breakage

# Children of init that a signal goes to, and of these the ones with all that came from them.
_ENGINE = "engine:REPLICA"
_TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kill-engine": ((_ENGINE,), ()),
    "hang-engine": ((_ENGINE,), (_ENGINE,)),
    "kill-agent": (("agent",), ()),
    "kill-controller": (("controller",), ()),
    "kill-ray": (("ray",), ("ray",)),
    # The agent first: it would start the others again.
    "kill-head": (("agent", "controller", "ray"), ("ray",)),
}
_OF_JOBS = ("kill-node", "drain-node")
_FILL_NAME = "exaslurm-chaos.fill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much of it: see ``exaslurm chaos --help``."""

    delay_ms: float = 100.0
    rate_mbit: float = 0.0
    skew_s: float = 90.0
    leave_mib: int = 1
    most_gib: float = 4.0
    directory: str | None = None
    grace_s: float = 30.0
    in_s: float = 120.0


@dataclass
class Fault:
    """One fault at its victims. ``run_dir`` is the deployment's. ``processes`` are those that it
    ends, by name, once it was done."""

    kind: Kind
    reach: Reach
    run_dir: Path
    victims: tuple[Victim, ...]
    options: Options
    token: str
    did: list[str] = field(default_factory=list)
    _armed: list[Armed] = field(default_factory=list)
    _late: list[Callable[[], None]] = field(default_factory=list)

    def check(self) -> None:
        """UserError if the site config does not say how to do this."""
        chaos = self.reach.chaos
        for name in self.kind.needs:
            given = getattr(chaos, name)
            if name == "disk" and self.options.directory is not None:
                continue
            if not given:
                raise UserError(
                    f"site {self.reach.plan.site} does not say how to do {self.kind.name}",
                    remedy=f"give chaos.{name} in the site config (docs/howto/chaos.md)",
                )
        of_slurm = self.kind.hits in ("slurm", "cell") or self.kind.name in _OF_JOBS
        if self.reach.plan.layout == "local" and of_slurm:
            raise UserError(f"{self.kind.name}: there is no Slurm under this deployment")

    def prepare(self) -> None:
        """Get everything to where it is done, so that ``do`` takes no time. CommandFailed."""
        names, everything = _TASKS.get(self.kind.name, ((), ()))
        number = signal.SIGSTOP if self.kind.name == "hang-engine" else signal.SIGKILL
        for victim in self.victims if names else ():
            given = {
                **self._find_args(victim),
                "names": _named(names, victim),
                "all": _named(everything, victim),
                "sig": int(number),
            }
            self._armed.append(self.reach.arm(self._spot(victim), "signal", given))
        for victim in self.victims if self.kind.name == "kill-node" else ():
            given = {"uid": self.reach.uid, "job_id": victim.job_id}
            self._armed.append(self.reach.arm(self._spot(victim), "kill-job", given))

    def disarm(self) -> None:
        """Let go of what was prepared and not done."""
        for armed in self._armed:
            armed.disarm()

    def do(self, mending: Mending) -> None:
        """Do it, after ``prepare``. CommandFailed, UserError if it cannot be done; of what was done
        it is promised how it is mended."""
        by_name: dict[str, Callable[[Mending], None]] = {
            **dict.fromkeys(_TASKS, lambda _: self._signal()),
            "hang-engine": self._hang_engine,
            "kill-node": self._kill_node,
            "kill-router": lambda _: self._kill_host_process("the router"),
            "kill-supervisor": lambda _: self._kill_host_process("the supervisor"),
            "cut-link": lambda mending: self._site(mending, self.reach.chaos.link, "link"),
            "slow-link": self._slow_link,
            "hang-fs": lambda mending: self._site(mending, self.reach.chaos.hang_fs, "files"),
            "lose-fs": lambda mending: self._site(mending, self.reach.chaos.lose_fs, "files"),
            "fill-disk": self._fill_disk,
            "skew-clock": self._skew_clock,
            "restart-slurmctld": self._restart_slurmctld,
            "drain-node": self._drain_node,
            "preempt": lambda _: self._preempt(),
            "reach-wall-time": lambda _: self._reach_wall_time(),
        }
        by_name[self.kind.name](mending)

    # --- processes of a cell ------------------------------------------------------------------

    def find(self, victim: Victim) -> dict[str, int]:
        """Pids of what init has started on the victim's node, by name."""
        found = self.reach.ask(self._spot(victim), "find", self._find_args(victim))
        return {name: child["pid"] for name, child in found["children"].items()}

    def _signal(self) -> None:
        word = "SIGSTOP" if self.kind.name == "hang-engine" else "SIGKILL"
        for armed in self._armed:
            for name, pids in armed.fire()["sent"].items():
                self._did(f"{word} to {name} on {armed.node} ({_pids(pids)})")

    def _hang_engine(self, mending: Mending) -> None:
        for victim in self.victims:
            given = {**self._find_args(victim), "names": [f"engine:{victim.replica}"]}
            argv = self.reach.on_spot(self._spot(victim), self.reach.node_program("resume", given))
            mending.will(f"SIGCONT to {victim.replica}", argv)
        self._signal()

    # --- nodes --------------------------------------------------------------------------------

    def _kill_node(self, mending: Mending) -> None:
        """All processes of the job there, then the link: as one, on all of them."""
        link = self.reach.chaos.link
        for victim in self.victims:
            node = str(victim.node)
            if link is not None:
                mending.will(f"link of {node}", filled(link.undo, node))
        for armed in self._armed:
            killed = armed.fire()["killed"]
            self._did(f"SIGKILL to all {killed} processes of the job on {armed.node}")
            if link is not None:
                self.reach.run(filled(link.do, armed.node))
                self._did(f"link of {armed.node} down")

    def _site(self, mending: Mending, breakage: Breakage | None, what: str) -> None:
        assert breakage is not None  # checked
        for victim in self.victims:
            node = str(victim.node)
            mending.will(f"{what} of {node}", filled(breakage.undo, node))
            argv = filled(breakage.do, node)
            self.reach.run(argv)
            self._did(f"{self.kind.name} on {node}: {' '.join(argv)}")

    def _slow_link(self, mending: Mending) -> None:
        for victim in self.victims:
            spot = self._spot(victim)
            given = {
                "address": victim.address,
                "ports": list(victim.ports),
                "rate_mbit": self.options.rate_mbit,
                "delay_ms": self.options.delay_ms,
                "token": self.token,
            }
            undo = self.reach.on_spot(spot, self.reach.node_program("fast", given))
            mending.will(f"link of {victim.node} as fast as before", undo)
            answer = self.reach.ask(spot, "slow", given)
            self._did(f"{victim.node}: {'; '.join(answer['done']) or 'nothing was asked for'}")

    def _fill_disk(self, mending: Mending) -> None:
        directory = self.options.directory or self.reach.chaos.disk
        for victim in self.victims:
            spot = self._spot(victim)
            given = {
                "directory": directory,
                "name": f"{_FILL_NAME}-{self.token}",
                "leave_mib": self.options.leave_mib,
                "most_gib": self.options.most_gib,
            }
            undo = self.reach.on_spot(spot, self.reach.node_program("free", given))
            mending.will(f"{directory} on {victim.node} has room again", undo)
            answer = self.reach.ask(spot, "fill", given)
            self._did(f"{answer['mib']} MiB taken by {answer['path']} on {victim.node}")

    def _skew_clock(self, mending: Mending) -> None:
        for victim in self.victims:
            spot = self._spot(victim)
            given = {**self._find_args(victim), "skew_s": self.options.skew_s}
            back = self.reach.node_program("skew", {**given, "skew_s": 0})
            mending.will(
                f"agent on {victim.node} with the true time", self.reach.on_spot(spot, back)
            )
            answer = self.reach.ask(spot, "skew", given)
            self._did(
                f"agent on {victim.node} (process {answer['is']}): {self.options.skew_s:+g} s"
            )

    def _drain_node(self, mending: Mending) -> None:
        for victim in self.victims:
            admin = self.reach.chaos.admin
            update = (*admin, "scontrol", "update", f"NodeName={victim.node}")
            mending.will(f"{victim.node} resumed", (*update, "State=RESUME"))
            self.reach.run((*update, "State=DRAIN", "Reason=exaslurm-chaos"))
            self._did(f"{victim.node} drained in Slurm")

    # --- Slurm --------------------------------------------------------------------------------

    def _restart_slurmctld(self, mending: Mending) -> None:
        breakage = self.reach.chaos.slurmctld
        assert breakage is not None  # checked
        mending.will("slurmctld started", breakage.undo)
        self.reach.run(breakage.do)
        self._did("slurmctld killed")

    def _preempt(self) -> None:
        victim = self.victims[0]
        job = str(victim.job_id)
        self.reach.run(("scancel", "--batch", "--signal=USR1", job))
        self._did(f"job {job} warned (SIGUSR1)")

        def cancel() -> None:
            self.reach.run(("scancel", job))
            self._did(f"job {job} cancelled {self.options.grace_s:g} s later")

        self._late.append(cancel)

    def _reach_wall_time(self) -> None:
        victim = self.victims[0]
        text = self.reach.run(
            ("squeue", "--noheader", f"--jobs={victim.job_id}", "--states=R", "--format=%i %M")
        )
        jobs = [line.split() for line in text.splitlines() if line.strip()]
        if not jobs:
            raise CommandFailed(f"job {victim.job_id} does not run")
        for ident, used in jobs:
            # Slurm counts limits in minutes; the last one is not cut short.
            minutes = int((seconds_of(used) + self.options.in_s) // 60) + 1
            self.reach.run(("scontrol", "update", f"JobId={ident}", f"TimeLimit={minutes}"))
            self._did(f"job {ident} ends after {minutes} min, of which {used} are over")

    # --- on the gateway's host ----------------------------------------------------------------

    def _kill_host_process(self, what: str) -> None:
        host = str(self.victims[0].host)
        pids = [str(victim.pid) for victim in self.victims]
        self.reach.run(self.reach.on_host(host, ("kill", "-KILL", *pids)))
        self._did(f"SIGKILL to {what} on {host} (process {', '.join(pids)})")

    # --- later --------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether something follows ``grace_s`` after ``do``."""
        return bool(self._late)

    def go_on(self) -> None:
        """Do what follows."""
        while self._late:
            self._late.pop(0)()

    def _did(self, text: str) -> None:
        self.did.append(text)

    def _spot(self, victim: Victim) -> Spot:
        group = victim.het_group if self.reach.plan.layout == "het" else None
        return Spot(node=str(victim.node), job_id=str(victim.job_id), het_group=group)

    def _find_args(self, victim: Victim) -> dict[str, Any]:
        return self.reach.find_args(str(victim.cell), self.run_dir)


def _named(names: Sequence[str], victim: Victim) -> list[str]:
    return [name.replace("REPLICA", str(victim.replica)) for name in names]


def seconds_of(text: str) -> int:
    """Seconds of Slurm's elapsed time ``[D-][[HH:]MM:]SS``; ValueError."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total + (int(days) * 86400 if days else 0)


def _pids(pids: Sequence[int]) -> str:
    return f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
