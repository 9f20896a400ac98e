"""Conditions on real nodes: who carries what, what Slurm is asked for, what status says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.end_to_end.conftest import Lab, Proof

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

DEPLOYMENT = "picky"
# c1 leads the cell; c1 and c2 are below leaf1, c3 and c4 below leaf2, both below the spine.
SPEC = f"""
schema: exaslurm/v1
deployment: {DEPLOYMENT}
site: lab
time_limit: "00:20:00"
workers: {{nodes: 3}}
ray: false
models:
  - name: here
    engine: {{kind: simulated}}
    constraints: [feature == nvme, switch == leaf2 and storage_read_ms <= 10 s]
    shards: [{{name: base, replicas: 2}}]
  - name: anywhere
    engine: {{kind: simulated}}
    constraints: [feature('nvme')]
    shards: [{{name: base, replicas: 3}}]
"""


def test_a_model_goes_where_its_conditions_are_met(wide_lab: Lab, line: Proof) -> None:
    line.ran("the cell comes up", wide_lab.submit(line, SPEC, DEPLOYMENT))
    status = wide_lab.status(DEPLOYMENT)
    (cell,) = status["cells"]
    where = {
        model: Counter(r["node"] for r in cell["replicas"] if r["model"] == model)
        for model in ("here", "anywhere")
    }
    line.check("only below leaf2", where["here"] == {"c3": 1, "c4": 1}, where["here"])
    line.check("the other one everywhere", len(where["anywhere"]) == 3, where["anywhere"])
    note = "c2 carries no replica of here: switch == leaf2 (switch is leaf1 + spine)"
    line.check("status names the node and its switch", note in cell["notes"], cell["notes"])
    above = {node["node"]: node["switches"] for node in cell["nodes"]}
    line.check("switches of all nodes", above["c2"] == ["spine", "leaf1"], above)
    proved = (
        "here:base may be lost with 1 switch (leaf2): its 2 replicas depend on 1 switch, 2 are "
        "needed"
    )
    line.check("what a shard may be lost with", proved in status["spread"], status["spread"])
    words = wide_lab.on("login", "scontrol", "show", "job", cell["job"]["id"]).stdout.split()
    asked = [word for word in words if word.startswith("Features=")]
    line.check("Slurm was asked for the feature", "Features=nvme" in asked, asked)
    line.ran("stop", wide_lab.exaslurm("stop", DEPLOYMENT, timeout_s=240))
    assert line.wrong == []
