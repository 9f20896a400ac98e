"""A little story of jobs, told to the real Slurm and to the simulated one alike.

Only the standard library and the client: it is run in the lab as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCRIPT = """#!/bin/bash
#SBATCH --output=/dev/null
#SBATCH --partition={partition}
#SBATCH --nodes={nodes}
#SBATCH --exclusive
#SBATCH --time=10
{last}
"""


def story(
    slurm: Any, directory: Path, partition: str, wait: Callable[[Callable[[], bool]], None]
) -> dict[str, Any]:
    """What the client says of jobs on a partition of two nodes, without names and times."""
    from exaslurm.errors import SlurmError

    seen: dict[str, Any] = {}

    def submit(
        name: str, last: str, *, nodes: int = 2, where: str = partition, extra: Sequence[str] = ()
    ) -> str:
        script = directory / f"{name}.sbatch"
        script.write_text(SCRIPT.format(partition=where, nodes=nodes, last=last))
        return str(slurm.submit(script, job_name=f"exa-story-{name}", extra=extra).id)

    def look(ident: str) -> dict[str, Any]:
        job = slurm.jobs([ident])[ident]
        waits = "waits" if job.reason in ("Resources", "Priority", "") else job.reason
        return {
            "state": job.state,
            "reason": waits,
            "nodes": len(job.nodes),
            "components": [(part.id == ident, part.offset) for part in job.components],
            "started": job.start_s is not None and not job.is_pending,
            "limit_s": round(job.end_s - job.start_s) if job.is_running else None,
            "ended": job.is_finished and job.end_s is not None,
        }

    def until(ident: str, *states: str) -> None:
        wait(lambda: slurm.jobs([ident])[ident].state in states)

    def refused(act: Callable[[], object]) -> str:
        try:
            act()
        except SlurmError as error:
            return f"{type(error).__name__} {error.transient}"
        return "not refused"

    first = submit("first", "sleep 300")
    until(first, "RUNNING")
    seen["running"] = look(first)
    seen["limits"] = list(slurm.time_limits([first])[first].values())
    second = submit("second", "sleep 300")
    seen["pending"] = look(second)
    seen["named"] = sorted(job.id == first for job in slurm.named("exa-story-"))
    slurm.cancel(second)
    until(second, "CANCELLED")
    seen["cancelled before it ran"] = {**look(second), "ended": True}
    slurm.set_time_limit(first, first, 5)
    seen["shortened"] = look(first)
    slurm.cancel(first)
    until(first, "CANCELLED")
    seen["cancelled"] = look(first)
    for name, last in (("good", "exit 0"), ("bad", "exit 3")):
        ident = submit(name, last, nodes=1)
        until(ident, "COMPLETED", "FAILED")
        seen[name] = look(ident)
    seen["by name"] = [job.state for job in slurm.find_by_name("exa-story-bad")]
    seen["unknown"] = slurm.jobs(["999999"])["999999"].state
    seen["no such name"] = slurm.find_by_name("exa-story-none")
    slurm.cancel("999999")
    many = submit("many", "true", nodes=50)
    seen["too many nodes"] = look(many)["state"]
    slurm.cancel(many)
    lines = slurm.query(["sinfo", "--noheader", "--Node", "--format=%N %R"]).split("\n")
    names = [line.split()[0] for line in lines if line.split()[1:] == [partition]]
    but_one = f"--exclude={names[0]}"
    seen["too few left"] = refused(lambda: submit("few", "true", extra=[but_one]))
    seen["no such partition"] = refused(lambda: submit("where", "true", where="nope"))
    seen["limit of nothing"] = refused(lambda: slurm.set_time_limit("999999", "999999", 5))
    return seen
