"""Roll-out of a version that does not answer, of a slow one, and of a good one, under load."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from acceptance.lab import HOME, Lab, lab
from acceptance.runner import Line
from acceptance.service.turns import history, load
from acceptance.tiny import tiny_model

TITLE = "rollout: a broken and a slow version are taken back by themselves, a good one goes to all"

NAME = "changing"
# As many times the layers of the model that serves: a slow engine by no trick.
LAYERS = 40
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
time_limit: "01:00:00"
ray: false
workers: {{nodes: 2, nodes_per_cell: 1}}
rollout: {{steps_percent: [30, 100], hold_s: 30, min_requests: 60}}
models:
  - name: tiny
    {model}
    shards: [{{name: base, replicas: 2}}]
"""
REAL = """\
source: {{path: {path}}}
    engine:
      args: {{max-model-len: {length}, max-num-seqs: 16}}
    per_replica: {{cores: 1, mem_gib: 4}}"""
SIMULATED = """\
engine:
      kind: simulated
      args: {{runner: generate, max-model-len: {length}, decode-tokens-per-s: {pace}}}"""


@dataclass(frozen=True)
class Versions:
    """What stands below the model's name in each spec."""

    first: str
    broken: str
    slow: str
    good: str


def real(line: Line, here: Lab) -> Versions:
    """Tiny models. With a context of one token vLLM starts, and refuses every request."""
    small, large = tiny_model(line, here), tiny_model(line, here, layers=LAYERS)
    return Versions(
        first=REAL.format(path=small, length=512),
        broken=REAL.format(path=small, length=1),
        slow=REAL.format(path=large, length=512),
        good=REAL.format(path=small, length=768),
    )


def simulated() -> Versions:
    """The same in a minute or two."""
    return Versions(
        first=SIMULATED.format(length=512, pace=60),
        broken=SIMULATED.format(length=1, pace=60),
        slow=SIMULATED.format(length=512, pace=20),
        good=SIMULATED.format(length=768, pace=60),
    )


def run(line: Line) -> None:
    here = lab(line)
    prove(line, here, real(line, here))


def prove(line: Line, here: Lab, versions: Versions) -> None:
    """All three, one after the other, under load that goes on all the time."""
    line.ran("a deployment of two cells serves", here.submit(line, spec(versions.first), NAME))
    stable = here.status(NAME)["generation"]  # this deployment may have been here before
    with load(line, here, NAME, "tiny", concurrency=8, max_tokens=16) as running:
        found = roll_out(line, here, spec(versions.broken), "broken")
        taken_back(line, here, found, "its first request failed", stable)
        own = [entry for entry in history(here, NAME) if entry["generation"] == found["candidate"]]
        shares = [entry for entry in own if entry["verb"] == "rollout share"]
        line.check("the broken one got no request", not shares, len(shares))
        found = roll_out(line, here, spec(versions.slow), "slow")
        taken_back(line, here, found, "with the new version and", stable)
        found = roll_out(line, here, spec(versions.good), "good")
        line.check("the good one is done", found["state"] == "done", found.get("reason") or "")
    judge(line, running.result())
    at_all(line, here, found["candidate"])


def spec(model: str) -> str:
    return SPEC.format(name=NAME, model=model)


def roll_out(line: Line, here: Lab, text: str, what: str) -> dict[str, Any]:
    """``exaslurm rollout --wait``: how it ended."""
    here.write(f"{NAME}.yaml", text)
    begin = time.monotonic()
    done = here.exaslurm(
        *("rollout", f"{HOME}/{NAME}.yaml", "--wait", "--timeout", "15m", "--json"), timeout_s=1000
    )
    for said in done.stderr.splitlines():
        line.note(f"{what}: {said}")
    line.need(f"{what}: the rollout came to an end", bool(done.stdout),
              "" if done.stdout else done.stderr[-500:])  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    wanted = 0 if found["state"] == "done" else 6
    line.check(f"{what}: exit code", done.returncode == wanted, done.returncode)
    line.note(f"{what}: {found['state']} after {time.monotonic() - begin:.0f} s")
    for entry in history(here, NAME):
        if entry["verb"].startswith("roll") and entry["generation"] == found["candidate"]:
            told = {k: v for k, v in entry.items() if k in ("share", "over", "reason", "note")}
            figures = [text for key, text in entry.items() if key.startswith("figures ")]
            line.note(f"{what}: {entry['verb']} {told or ''} {' '.join(figures)}".rstrip())
    return found


def taken_back(line: Line, here: Lab, found: dict[str, Any], why: str, stable: int) -> None:
    line.check("taken back by itself", found["state"] == "undone", found["state"])
    line.check("for the right reason", why in str(found["reason"]), found["reason"])
    status = here.status(NAME)
    generations = {cell["generation"] for cell in status["cells"]}
    line.check("what serves is the old version", generations == {stable}, sorted(generations))
    line.check("status tells why", why in str(status["rollout"]["sentence"]))


def judge(line: Line, found: dict[str, Any]) -> None:
    """What clients saw of all three."""
    line.note(
        f"{found['answers']} answers ({found['streams']} streams) in {found['lasted_s']:.0f} s, "
        f"slowest {found['slowest_s']:.1f} s; longest time without an answer {found['gap_s']:.1f} s"
    )
    line.at_least("answers", found["answers"], 300)
    for what in ("not_begun", "begun"):
        wrong = found[what]
        line.check(f"{what}: 0 failed", not wrong, "\n".join([str(len(wrong)), *wrong[:5]]))
    line.at_least("never fewer replicas than asked", found["fewest"], 2)


def at_all(line: Line, here: Lab, candidate: int) -> None:
    status = here.status(NAME)
    generations = {cell["generation"] for cell in status["cells"]}
    line.check("all cells are of it", generations == {candidate}, sorted(generations))
    line.check("it is the deployment", status["generation"] == candidate, status["generation"])
    versions = {item["version"] for cell in status["cells"] for item in cell["replicas"]}
    line.check("all replicas are of one version", len(versions) == 1, sorted(versions))
    line.check("and ready", status["phase"] == "ready", status["phase"])
    jobs = here.on("login", "squeue", "--noheader", "--me", "--format=%j").stdout.split()
    line.check("no job of another is left", len(set(jobs)) == 2, sorted(set(jobs)))
