"""A node is lost on purpose, under load, as `exaslurm chaos` does it."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance.service import kit, strikes  # isort: skip

NAME = "chaos"
SPEC = f"""\
schema: exaslurm/v1
deployment: {NAME}
site: single
ray: false
workers: {{nodes: 3, min_nodes: 2}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 2}}]
"""


@pytest.mark.lab
@pytest.mark.timeout(300)
def test_a_lost_node_costs_no_request_that_had_not_begun(wide_lab: Lab, line: Proof) -> None:
    kit.site(wide_lab, "single", "slurm: {hetjobs: false}\n")
    line.ran("it is ready", wide_lab.submit(line, SPEC, NAME))
    before = kit.engines(wide_lab, NAME)
    load = ("--concurrency=8", "--rate=30", "--before=1", "--after=1")
    report = strikes.strike(line, wide_lab, NAME, "kill-node", *load)
    (gone,) = report["victims"]
    after = kit.engines(wide_lab, NAME)
    assert gone in {node for node, _, _ in before.values()}
    assert gone not in {node for node, _, _ in after.values()}
    assert report["mended"] == [f"link of {gone}"]
    assert line.wrong == []
