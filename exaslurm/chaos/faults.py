"""Breaking things: each fault promises how it is mended before it is done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exaslurm.chaos.kinds import Kind
from exaslurm.chaos.reach import CommandFailed, Reach, Spot, filled
from exaslurm.chaos.undo import Mending
from exaslurm.chaos.victims import Victim
from exaslurm.errors import UserError
from exaslurm.site.chaos import Breakage

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
        if self.reach.plan.layout == "local" and self.kind.hits in ("slurm", "cell"):
            raise UserError(f"{self.kind.name}: there is no Slurm under this deployment")

    def do(self, mending: Mending) -> None:
        """Do it. CommandFailed, UserError if it cannot be done (what was done of it is promised to
        be mended)."""
        by_name: dict[str, Callable[[Mending], None]] = {
            "kill-engine": self._kill_engine,
            "hang-engine": self._hang_engine,
            "kill-agent": lambda _: self._kill_tasks("agent"),
            "kill-controller": lambda _: self._kill_tasks("controller"),
            "kill-ray": lambda _: self._kill_tasks("ray", everything=True),
            "kill-head": self._kill_head,
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

    def _kill_engine(self, _: Mending) -> None:
        for victim in self.victims:
            self._signal(victim, [f"engine:{victim.replica}"], signal.SIGKILL)

    def _hang_engine(self, mending: Mending) -> None:
        for victim in self.victims:
            name = f"engine:{victim.replica}"
            answer = self._signal(victim, [name], signal.SIGSTOP, everything=True)
            pids = [pid for pids in answer["sent"].values() for pid in pids]
            spot = self._spot(victim)
            argv = self.reach.on_spot(spot, self.reach.node_program("resume", {"pids": pids}))
            mending.will(f"SIGCONT to {victim.replica}", argv)

    def _kill_tasks(self, *names: str, everything: bool = False) -> None:
        for victim in self.victims:
            self._signal(victim, list(names), signal.SIGKILL, everything=everything)

    def _kill_head(self, _: Mending) -> None:
        # The agent last: it would start the others again.
        self._kill_tasks("agent", "ray", "controller", everything=False)
        if "ray" in self.find(self.victims[0]):
            self._kill_tasks("ray", everything=True)

    def _signal(
        self,
        victim: Victim,
        names: Sequence[str],
        number: signal.Signals,
        *,
        everything: bool = False,
    ) -> dict[str, Any]:
        given = {
            **self._find_args(victim),
            "names": list(names),
            "sig": int(number),
            "all": everything,
        }
        answer = self.reach.ask(self._spot(victim), "signal", given)
        for name, pids in answer["sent"].items():
            self._did(f"{number.name} to {name} on {victim.node} ({_pids(pids)})")
        return answer

    # --- nodes --------------------------------------------------------------------------------

    def _kill_node(self, mending: Mending) -> None:
        """All processes of the job there, then the link: as one, on all of them."""
        link = self.reach.chaos.link
        for victim in self.victims:
            node = str(victim.node)
            if link is not None:
                mending.will(f"link of {node}", filled(link.undo, node))
        for victim in self.victims:
            given = {"uid": self.reach.uid, "job_id": victim.job_id}
            answer = self.reach.ask(self._spot(victim), "kill-job", given)
            self._did(f"SIGKILL to all {answer['killed']} processes of the job on {victim.node}")
            if link is not None:
                self.reach.run(filled(link.do, str(victim.node)))
                self._did(f"link of {victim.node} down")

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


def seconds_of(text: str) -> int:
    """Seconds of Slurm's elapsed time ``[D-][[HH:]MM:]SS``; ValueError."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total + (int(days) * 86400 if days else 0)


def _pids(pids: Sequence[int]) -> str:
    return f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
