"""Wall-time roll-over, and what limits, maintenance and preemption make of it."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from acceptance.lab import Lab, lab, until
from acceptance.runner import Line
from acceptance.service.kit import big_lab, forget
from acceptance.service.turns import history, load, notes, report, submissions
from acceptance.tiny import tiny_model

TITLE = "wall-time roll-over: nobody notices; without overlap the gap is announced and measured"

ASKED = 2
REAL = """
schema: exaslurm/v1
deployment: rolling
site: lab
time_limit: "00:05:00"
ray: false
workers: {{nodes: 2}}
models:
  - name: tiny
    source: {{path: {path}}}
    engine:
      args: {{max-model-len: 512, max-num-seqs: 8}}
    per_replica: {{cores: 12, mem_gib: 4}}
    shards: [{{name: base, replicas: 2}}]
"""
SIMULATED = """
schema: exaslurm/v1
deployment: {name}
site: lab
time_limit: "{limit}"
ray: false
workers: {{nodes: {nodes}, nodes_per_cell: 1}}
{more}
models:
  - name: pretend
    engine: {{kind: simulated}}
    per_replica: {{cores: {cores}}}
    shards: [{{name: base, replicas: {replicas}}}]
"""
# What tells a job of its preemption has another name in each Slurm.
WARN = {
    "22.05": ("SlurmctldParameters=preempt_send_user_signal",),
    "24.11": ("PreemptParameters=send_user_signal",),
}


def run(line: Line) -> None:
    roll_over(line)
    for slurm in ("22.05", "24.11"):
        conf = (
            "AccountingStorageEnforce=limits,qos",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=CANCEL",
            *WARN[slurm],
        )
        here = lab(line, slurm=slurm, accounting=conf)
        forget(here)
        without_overlap(line, here)
        maintenance(line, here)
        preempted(line, here)


# --- three times under load ------------------------------------------------------------------


def roll_over(line: Line, times: int = 3) -> None:
    """Jobs of five minutes with real vLLM, replaced three times. A replica fills its node, so that
    the next job comes up on others."""
    here = big_lab(line)
    forget(here)
    line.ran("submitted", here.submit(line, REAL.format(path=tiny_model(line, here)), "rolling"))
    names = ["c000", *(f"c000.{number}" for number in range(2, times + 2))]

    def handed_over() -> bool:
        turns = submissions(here, "rolling")
        ended = [turns[name]["state"] for name in names[:-1] if name in turns]
        newest = turns.get(names[-1]) or {}
        return ended == ["stopped"] * times and newest.get("served_s") is not None

    with load(line, here, "rolling", "tiny") as running:
        line.need(f"handed over {times} times", until(handed_over, 400 * times, 5.0))
    report(line, running.result(), asked=ASKED)
    turns = submissions(here, "rolling")
    for before, after in itertools.pairwise(names):
        old, new = turns[before], turns[after]
        line.check(
            f"{before} ended in time, {after} served first",
            old["end"] == "COMPLETED" and new["served_s"] < old["drain_s"],
            f"{new['served_s'] - new['submitted_s']:.0f} s from sbatch to serving, side by side "
            f"for {old['ended_s'] - new['served_s']:.0f} s, "
            f"ended {old['started_s'] + 300 - old['ended_s']:.0f} s before its limit",
        )
    here.exaslurm("stop", "rolling", timeout_s=240)


# --- limits ------------------------------------------------------------------------------------


def without_overlap(line: Line, here: Lab) -> None:
    """A QOS that has room for one job of the cell: said at submit, and the gap is measured."""
    for name, limit in (("few", "MaxSubmitJobsPerUser=2"), ("narrow", "GrpTRES=node=2")):
        manage(line, here, "add", "qos", name, limit)
        manage(line, here, "modify", "user", "exa1", "set", f"qos+={name}")
        spec = SIMULATED.format(
            name=name, limit="00:02:00", nodes=1, replicas=2, cores=1, more=f"qos: {name}"
        )
        done = here.submit(line, spec, name)
        line.ran(f"{name}: submitted", done)
        said = [text for text in done.stderr.splitlines() if "cannot start before" in text]
        line.check(f"{name} ({limit}): said at submit", len(said) == 1, *said)
        told = [text for text in notes(here, name) if "cannot start before" in text]
        line.check(f"{name}: and in status", len(told) == 1)
        line.check(f"{name}: and in the history", "cannot start before" in history(here, name)[0]
                   .get("note", ""))  # fmt: skip
        seen: set[str] = set()

        def second_serves(name: str = name, seen: set[str] = seen) -> bool:
            seen.update(notes(here, name))
            return (submissions(here, name).get("c000.2") or {}).get("served_s") is not None

        with load(line, here, name, "pretend") as running:
            line.need(f"{name}: the next job serves", until(second_serves, 400, 2.0))
            time.sleep(8)  # of load on it
        found = running.result()
        turns = submissions(here, name)
        measured = turns["c000.2"]["gap_s"]
        line.check(f"{name}: the gap is measured", measured is not None,
                   f"{measured} s; a client had no answer for {found['gap_s']:.1f} s")  # fmt: skip
        line.at_most(f"{name}: as a client saw it, but for a look of the supervisor",
                     abs(measured - found["gap_s"]), 15)  # fmt: skip
        told = [entry["gap_s"] for entry in history(here, name) if "gap_s" in entry]
        line.check(f"{name}: and told in the history", told == [f"{measured:.0f}"], told)
        line.check(f"{name}: what was begun is finished", not found["begun"], len(found["begun"]))
        waits = [text for text in sorted(seen) if "next try is at" in text or "[QOS" in text]
        line.check(f"{name}: status tells what it waits for", bool(waits), *waits[:1])
        here.exaslurm("stop", name, timeout_s=240)


def manage(line: Line, here: Lab, *words: str) -> None:
    done = here.on("ctl", "sacctmgr", "-i", *words, user="root")
    line.need(f"sacctmgr {' '.join(words)}", done.returncode == 0
              or "Nothing new added" in done.stdout, done.stdout + done.stderr)  # fmt: skip


# --- maintenance -------------------------------------------------------------------------------


def maintenance(line: Line, here: Lab) -> None:
    """Announced while a job waits, and while one runs."""
    root(line, here, "create", "reservation", "reservationname=m1", "starttime=now+22minutes",
         "duration=60", "nodes=ALL", "flags=maint,ignore_jobs", "users=root")  # fmt: skip
    line.cleanups.append(
        lambda: here.on("ctl", "scontrol", "delete", "reservationname=m1", user="root")
    )
    spec = SIMULATED.format(name="waits", limit="01:00:00", nodes=1, replicas=2, cores=1, more="")
    here.write("waits.yaml", spec)
    line.cleanups.append(lambda: here.exaslurm("stop", "waits", timeout_s=240))
    line.ran("submitted for an hour, 22 minutes before a maintenance",
             here.exaslurm("submit", "waits.yaml"))  # fmt: skip
    begin = time.monotonic()

    def runs() -> bool:
        return bool(here.status("waits")["phase"] == "ready")

    line.need("it is made shorter, and serves", until(runs, 180, 2.0),
              f"after {time.monotonic() - begin:.0f} s")  # fmt: skip
    limits = here.on("login", "squeue", "--noheader", "--me", "--format=%i %l").stdout.split()
    line.check("all its components alike", len(set(limits[1::2])) == 1, " ".join(limits))
    told = [entry for entry in history(here, "waits") if entry["verb"] == "time limit"]
    line.check("told in the history", len(told) == 1 and "m1" in told[0]["reason"],
               told[0]["reason"] + f": {told[0]['minutes']} minutes" if told else "")  # fmt: skip
    here.exaslurm("stop", "waits", timeout_s=240)
    here.on("ctl", "scontrol", "delete", "reservationname=m1", user="root")

    spec = SIMULATED.format(name="moves", limit="12:00:00", nodes=1, replicas=2, cores=1, more="")
    line.ran("one that runs for twelve hours", here.submit(line, spec, "moves"))
    node = next(iter(replicas(here, "moves").values()))["node"]
    root(line, here, "create", "reservation", "reservationname=m2", "starttime=now+9minutes",
         "duration=60", f"nodes={node}", "flags=maint,ignore_jobs", "users=root")  # fmt: skip
    line.cleanups.append(
        lambda: here.on("ctl", "scontrol", "delete", "reservationname=m2", user="root")
    )

    def moved() -> bool:
        turns = submissions(here, "moves")
        return turns["c000"]["state"] == "stopped" and "c000.2" in turns

    with load(line, here, "moves", "pretend") as running:
        line.need("a maintenance of its node alone: a successor elsewhere", until(moved, 300, 2.0))
    report(line, running.result(), asked=ASKED)
    places = {item["node"] for item in replicas(here, "moves").values()}
    line.check("on another node", node not in places, f"{node}, then {', '.join(sorted(places))}")
    here.exaslurm("stop", "moves", timeout_s=240)
    here.on("ctl", "scontrol", "delete", "reservationname=m2", user="root")


def root(line: Line, here: Lab, *words: str) -> None:
    line.ran(f"scontrol {' '.join(words)}", here.on("ctl", "scontrol", *words, user="root"))


def replicas(here: Lab, deployment: str) -> dict[str, dict[str, Any]]:
    cells = here.status(deployment)["cells"]
    return {item["id"]: item for cell in cells for item in cell["replicas"]}


# --- preemption --------------------------------------------------------------------------------


def preempted(line: Line, here: Lab) -> None:
    """Two cells; a job of a higher partition wants the node of one, which has a minute of grace."""
    for partition in ("cpu", "gpu"):  # the head's component has a grace of its own
        root(line, here, "update", f"partitionname={partition}", "gracetime=60")
    spec = SIMULATED.format(name="yields", limit="04:00:00", nodes=2, replicas=2, cores=12, more="")
    line.ran("two cells", here.submit(line, spec, "yields"))
    places = {key: item["node"] for key, item in replicas(here, "yields").items()}
    node = places["c000-r0000"]
    both = [key for key, place in places.items() if place == node]
    here.on("ctl", "scontrol", "create", "partitionname=high", f"nodes={node}", "prioritytier=10",
            "preemptmode=off", "maxtime=60", user="root")  # fmt: skip
    line.cleanups.append(
        lambda: here.on("ctl", "scontrol", "delete", "partitionname=high", user="root")
    )
    rival = "sbatch --parsable --partition=high --exclusive --time=5 --output=/dev/null"
    with load(line, here, "yields", "pretend", concurrency=8) as running:
        time.sleep(5)  # of load on all of it
        line.ran("a job that goes before", here.sh(f"{rival} --wrap 'sleep 100'", user="exa2"))

        def over() -> bool:
            turns = submissions(here, "yields")
            gone = [turn for turn in turns.values() if turn["state"] == "stopped"]
            return len(gone) == len({key.rpartition("-r")[0] for key in both}) and all(
                (turns.get(f"{turn['cell']}.2") or {}).get("served_s") for turn in gone
            )

        line.need("its cell is replaced", until(over, 300, 2.0),
                  json.dumps(_summary(here, "yields")))  # fmt: skip
    found = running.result()
    turns = submissions(here, "yields")
    gone = {name: turn for name, turn in turns.items() if turn["state"] == "stopped"}
    ends = {name: turn["end"] for name, turn in gone.items()}
    line.check("drained at Slurm's notice, and ended before it was killed",
               all(turn["drain_s"] for turn in gone.values()), ends)  # fmt: skip
    line.check("requests not begun that failed: 0", not found["not_begun"], found["not_begun"][:3])
    line.check("begun streams that broke: 0", not found["begun"], found["begun"][:3])
    ids = [turn["job_id"] for turn in turns.values()]
    line.check("no turn's job twice", len(set(ids)) == len(ids), len(ids))
    here.exaslurm("stop", "yields", timeout_s=240)
    here.on("ctl", "scontrol", "delete", "partitionname=high", user="root")
    for partition in ("cpu", "gpu"):
        root(line, here, "update", f"partitionname={partition}", "gracetime=0")
    here.sh("scancel --me", user="exa2")


def _summary(here: Lab, deployment: str) -> dict[str, Any]:
    turns = submissions(here, deployment)
    keys = ("state", "end", "message")
    return {name: {key: turn[key] for key in keys} for name, turn in turns.items()}
