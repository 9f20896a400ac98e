"""A gateway in a job: what it asks for, and where it cannot be."""

from __future__ import annotations

import pytest

from exaslurm.core.plan import NODE_ADDRESS, GatewayJobPlan
from exaslurm.errors import UserError
from tests.plan.conftest import Desk

JOBS = "gateway: {homes: [service, job]}"


def job(desk: Desk, spec: str = "", site: str = JOBS) -> GatewayJobPlan:
    plan = desk.plan(spec or "gateway: {home: job}", site)
    assert plan.gateway.job is not None
    return plan.gateway.job


def test_a_small_job_on_a_node_without_gpus(desk: Desk) -> None:
    plan = desk.plan("gateway: {home: job}\ntime_limit: 01:00:00\naccount: mine", JOBS)
    gateway = plan.gateway
    assert (gateway.bind, gateway.start_with_submit) == (NODE_ADDRESS, True)
    assert gateway.job is not None
    assert gateway.job.spares == 2
    assert (gateway.job.component.kind, gateway.job.component.gpus_per_node) == ("login", 0)
    assert gateway.job.component.directives == (
        ("partition", "serial"),
        ("account", "mine"),
        ("nodes", "1"),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", "2"),
        ("mem", "2048M"),
        ("time", "01:00:00"),
        ("no-requeue", None),
        ("signal", "B:TERM@60"),
        ("dependency", "singleton"),
    )
    assert any("unencrypted" in note for note in plan.notes)


def test_elsewhere_there_is_none(desk: Desk) -> None:
    assert desk.plan("", JOBS).gateway.job is None


def test_what_the_spec_and_the_site_say(desk: Desk) -> None:
    site = (
        "gateway: {homes: [job], spares: 3, cpus: 4, mem_gib: 1, kind: gpu, bind: 0.0.0.0}\n"
        "slurm: {memory: none}"
    )
    one = job(desk, "time_limit: 01:00:00", site)
    words = dict(one.component.directives)
    assert (one.spares, words["partition"], words["cpus-per-task"]) == (3, "gpus", "4")
    assert "mem" not in words
    assert "gres" not in words
    spec = "gateway: {spares: 0, workers: 6, time_limit: 1-00:00:00}\ntime_limit: 01:00:00"
    other = job(desk, spec, site)
    words = dict(other.component.directives)
    assert (other.spares, words["cpus-per-task"], words["time"]) == (0, "7", "1-00:00:00")
    assert desk.plan(spec, site).gateway.bind == "0.0.0.0"


def test_whole_nodes_are_asked_for_whole(desk: Desk) -> None:
    kinds = "node_kinds: {n: {cpus: 32, mem_gib: 64, exclusive: true}}"
    words = dict(job(desk, site=f"{JOBS}\n{kinds}").component.directives)
    assert (words["cpus-per-task"], words["mem"]) == ("32", "65536M")
    assert "exclusive" in words


@pytest.mark.parametrize(
    ("spec", "site", "what"),
    [
        ("gateway: {home: job, bind: 127.0.0.1}", JOBS, "gateway.bind: 127.0.0.1 cannot be reach"),
        ("gateway: {home: job}", "gateway: {homes: [job], kind: cpus}", "no node kind 'cpus'"),
        (
            "gateway: {home: job}",
            f"{JOBS}\nnode_kinds: {{g: {{gpus: 4, cpus: 8, require_gpus: true}}}}",
            "nodes of kind g are given with GPUs only: use service",
        ),
        (
            "gateway: {home: job}",
            f"{JOBS}\nslurm: {{forbidden_directives: [--dependency]}}",
            "--dependency=singleton, which is refused on site big: use service",
        ),
        (
            "gateway: {home: job}\nslurm: {skip_directives: [dependency]}",
            JOBS,
            "--dependency=singleton, which slurm.skip_directives takes away",
        ),
        ("gateway: {home: job, workers: 40}", JOBS, "gateway.workers: 41 CPUs for the gateway's"),
        ("gateway: {spares: 9}", JOBS, "gateway.spares"),
    ],
)
def test_where_it_cannot_be(desk: Desk, spec: str, site: str, what: str) -> None:

    with pytest.raises(UserError) as caught:
        desk.plan(spec, site)
    assert what in str(caught.value)


def test_without_slurm(desk: Desk) -> None:
    refusal = desk.refusal("gateway: {home: job}", "gateway: {homes: [job]}", base="local")
    assert any("gateway.home: job asked, but site mine has no Slurm" in line for line in refusal)
