"""What every shard shall outlive, and whether the plan sees to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from exaslurm.core.plan import Layout
from exaslurm.core.spread import Proof, Survival, Thing, prove
from exaslurm.plan.context import Findings
from exaslurm.plan.spread import FilledCell
from exaslurm.spec.model import Spec

_DEFAULT = Survival()
_THINGS: tuple[Thing, ...] = ("nodes", "switches", "cells")


def survival_of(spec: Spec) -> Survival:
    """What the spec demands; the rest is tried as far as replicas, nodes and cells go."""
    given = {
        thing: getattr(spec.survive, thing)
        for thing in _THINGS
        if getattr(spec.survive, thing) is not None
    }
    return Survival(
        nodes=given.get("nodes", _DEFAULT.nodes),
        switches=given.get("switches", _DEFAULT.switches),
        cells=given.get("cells", _DEFAULT.cells),
        demanded=tuple(thing for thing in _THINGS if given.get(thing)),
    )


def check_spread(
    spec: Spec,
    cells: Sequence[FilledCell],
    survival: Survival,
    layout: Layout,
    findings: Findings,
) -> Proof:
    """What is proved and what is not; what was demanded and cannot be is refused.

    Nodes and cells are proved here: the binder places replicas by the same rule. Switches are
    known when Slurm has granted nodes; here only the number of replicas can be wrong.
    """
    if layout == "local" and not survival.demanded:
        return Proof(outlived=(), weak=(), without=())  # one machine: nothing could be done
    standings = [standing for cell in cells for standing in cell.standings]
    proof = prove(
        standings,
        survival,
        cells=[str(index) for index in range(len(cells))],
        no_switches="switches are looked at when Slurm has granted nodes",
    )
    refused = [weak for weak in proof.weak if weak.thing in survival.demanded]
    for thing in survival.demanded:
        mine = replace(proof, outlived=(), weak=tuple(w for w in refused if w.thing == thing))
        for sentence in mine.sentences():
            findings.add(spec.problem(f"survive.{thing}", sentence))
    if "cells" in survival.demanded and len(cells) == 1:
        text = "there is one cell: more come of a smaller workers[].nodes_per_cell"
        findings.add(spec.problem("survive.cells", text))
    if "switches" in survival.demanded:
        _check_switches(spec, cells, survival, findings)
    return proof


def _check_switches(
    spec: Spec, cells: Sequence[FilledCell], survival: Survival, findings: Findings
) -> None:
    """What can be known before there are nodes."""
    counts: Counter[str] = Counter(s.shard for cell in cells for s in cell.standings)
    few = [name for name, count in counts.items() if count <= survival.switches]
    if few:
        needed = survival.switches + 1
        text = f"{', '.join(few[:4])}: {needed} replicas are needed for that"
        findings.add(spec.problem("survive.switches", text))
    asked = [workers.switches for workers in spec.workers]
    if len(cells) == 1 and all(text is not None and text.split("@")[0] == "1" for text in asked):
        text = "workers[].switches: 1 puts the only cell below one switch"
        findings.add(spec.problem("survive.switches", text))
