"""What a plan provides for, and with how much a deployment begins."""

from __future__ import annotations

import pytest

from exaslurm.core.plan import Plan, ShardScale
from exaslurm.core.sharing import at_start, planned, share
from exaslurm.errors import PlanError
from tests.plan.conftest import Desk

MODELS = """\
models:
  - name: m
    engine: {{kind: simulated, args: {{max-num-seqs: 8}}}}
    shards: [{0}]
"""


def spec(shards: str, autoscale: str | None, workers: str = "{nodes: 4, nodes_per_cell: 1}") -> str:
    lines = MODELS.format(shards) + f"workers: {workers}\n"
    return lines + (f"autoscale: {autoscale}\n" if autoscale is not None else "")


def test_a_spec_without_the_key_is_planned_as_ever(desk: Desk) -> None:
    plan = desk.plan(spec("{name: a, replicas: 4}", None))
    assert plan.autoscale is None
    assert at_start(plan) is None
    assert planned(plan) == {"m:a": 4}


def test_the_plan_has_room_for_the_most_and_begins_with_less(desk: Desk) -> None:
    plan = desk.plan(
        spec("{name: a, replicas: 2}", "{max: 8, min_per_model: 2, cooldown_s: 60}")
        + "gateway: {limits: {max_waiting: 5}}\n"
    )
    assert planned(plan) == {"m:a": 8}
    scale = plan.autoscale
    assert scale is not None
    assert scale.shards == {"m:a": ShardScale(start=2, least=1, most=8, capacity=8)}
    assert (scale.least_per_model, scale.cooldown_s, scale.idle_s) == (2, 60, None)
    assert (scale.up_at, scale.down_at) == (0.75, 0.25)
    begin = share(plan, at_start(plan), set())
    assert begin == {"c000": {"m:a": 1}, "c001": {"m:a": 1}}
    assert plan.notes[:2] == (
        "autoscale: room for 8 replicas of m:a; 2 to begin with, 1 at least",
        "autoscale: 2 of 4 cells are submitted at first, others when needed",
    )


def test_without_slurm_only_by_hand(desk: Desk) -> None:
    text = spec("{name: a}", "{max: 2}", "{nodes: 1}").replace("max-num-seqs: 8", "max-num-seqs: 2")
    notes = desk.plan(text, base="local").notes
    assert any("without Slurm nothing is scaled by itself" in note for note in notes)


def test_shards_may_differ(desk: Desk) -> None:
    shards = "{name: a, min: 2, replicas: 2}, {name: b, max: 3}, {name: c, min: 0}"
    plan = desk.plan(spec(shards, "{max: 4, scale_to_zero: true, idle_s: 30}"))
    assert plan.autoscale is not None
    found = {name: (s.least, s.most) for name, s in plan.autoscale.shards.items()}
    assert found == {"m:a": (2, 4), "m:b": (1, 3), "m:c": (0, 4)}
    assert plan.autoscale.idle_s == 30
    assert "none after 30 s without a request, else 2" in plan.notes[0]


@pytest.mark.parametrize(
    ("more", "capacity"),
    [
        ("", 8),
        ("gateway: {limits: {max_in_flight_per_replica: 5}}\n", 5),
    ],
)
def test_capacity_of_a_replica(desk: Desk, more: str, capacity: int) -> None:
    plan = desk.plan(spec("{name: a}", "{max: 2}") + more)
    assert plan.autoscale is not None
    assert plan.autoscale.shards["m:a"].capacity == capacity
    plan = desk.plan(spec("{name: a}", "{max: 2, requests_per_replica: 3}") + more)
    assert plan.autoscale is not None
    assert plan.autoscale.shards["m:a"].capacity == 3


def test_what_is_promised_goes_along(desk: Desk) -> None:
    text = spec("{name: a}", "{max: 2}").replace(
        "    shards", "    slo: {ttft_p95_s: 2.5}\n    shards"
    )
    plan = desk.plan(text)
    assert plan.autoscale is not None
    assert plan.autoscale.shards["m:a"].ttft_p95_s == 2.5


def test_notes_on_what_nothing_acts_on(desk: Desk) -> None:
    text = spec("{name: a, max: 3}", None).replace(
        "    shards", "    slo: {ttft_p95_s: 2}\n    shards"
    )
    assert [note for note in desk.plan(text).notes if "autoscale" in note] == [
        "models[0].slo.ttft_p95_s: nothing acts on it without autoscale",
        "models[0].shards[0].max: nothing acts on it without autoscale",
    ]


@pytest.mark.parametrize(
    ("shards", "autoscale", "said"),
    [
        ("{name: a, replicas: 3}", "{max: 2}", "shards[0].replicas: 3 at the beginning, but 1 at"),
        ("{name: a, min: 3, replicas: 3}", "{max: 2}", "shards[0].min: at least 3 asked, but at"),
        ("{name: a, max: 1}", "{min: 2}", "shards[0].max: at least 2 asked, but at most 1"),
        ("{name: a, min: 0}", "{max: 2}", "shards[0].min: 0 asked: with autoscale.scale_to_zero"),
        ("{name: a}", "{max: 2, min_per_model: 4}", "min_per_model: 4 asked, but model m has 2"),
        ("{name: a}", "{max: 500}", "autoscale.max: 500 asked, but only 64 have room"),
        ("{name: a, max: 500}", "{max: 2}", "shards[0].max: 500 asked, but only 64 have room"),
    ],
)
def test_what_cannot_be_is_refused(shards: str, autoscale: str, said: str, desk: Desk) -> None:
    with pytest.raises(PlanError) as caught:
        desk.plan(spec(shards, autoscale))
    assert said in str(caught.value)


def test_a_plan_comes_back_from_its_text(desk: Desk) -> None:
    from exaslurm.core.codec import dumps, loads

    plan = desk.plan(spec("{name: a}", "{max: 2, scale_to_zero: true}"))
    assert loads(Plan, dumps(plan), where="here") == plan
    assert plan.is_sealed()
