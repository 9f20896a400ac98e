"""What a site allows: time by size, jobs, nodes, and keys that a spec may give."""

from __future__ import annotations

from typing import Any

import pytest

Desk = Any
Options = Any

BINS = """\
partitions:
  serial: {}
  gpus:
    max_jobs: 3
    time_by_nodes: [{nodes: 2, max_time: 02:00:00}, {nodes: 8, max_time: 06:00:00}]
"""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("time_limit: 02:00:00", None),
        ("time_limit: 02:00:01", "time_limit: 02:00:01 asked, partition gpus allows 02:00:00 to a"),
        ("time_limit: 06:00:00\nworkers: {nodes: 3}", None),
        ("time_limit: 06:00:01\nworkers: {nodes: 8}", "allows 06:00:00 to a job of 8 nodes"),
        ("workers: {nodes: 9}", "workers: 9 nodes in one cell, but partition gpus allows 8: set"),
        ("workers: {nodes: 32, nodes_per_cell: 8}", "partition gpus allows 3: use larger cells"),
    ],
)
def test_time_by_size_and_jobs_of_a_partition(desk: Desk, spec: str, said: str | None) -> None:
    if said is None:
        desk.plan(spec, BINS)
    else:
        assert [line for line in desk.refusal(spec, BINS) if said in line]


def test_the_head_is_a_job_of_one_node(desk: Desk) -> None:
    site = BINS.replace("serial: {}", "serial: {time_by_nodes: [{nodes: 1, max_time: 60}]}")
    found = desk.refusal("time_limit: 02:00:00\nworkers: {nodes: 2}", site)
    assert len(found) == 1
    assert "partition serial allows 01:00:00 to the one node of the head" in found[0]


def test_node_hours(desk: Desk) -> None:
    site = "partitions: {serial: {}, gpus: {max_node_hours: 1.5}}"
    desk.plan("time_limit: 90", site)
    desk.plan("time_limit: 45\nworkers: {nodes: 2}", site)
    found = desk.refusal("time_limit: 46\nworkers: {nodes: 2}", site)
    assert "partition gpus allows 00:45:00 to a job of 2 nodes" in found[0]


def test_quality_of_service(desk: Desk, options: Options) -> None:
    site = (
        "node_kinds: {cpu: {cpus: 4}, gpu: {cpus: 64, mem_gib: 512, gpus: 4, qos: regular}}\n"
        "qos: {regular: {max_time: 04:00:00}, debug: {max_nodes: 2}, big: {min_nodes: 4}}"
    )
    plan = desk.plan("", site)
    assert ("qos" in options(plan, 0), options(plan, 1)["qos"]) == (False, "regular")
    assert options(desk.plan("qos: debug", site), 1)["qos"] == "debug"
    assert "qos regular allows 04:00:00" in desk.refusal("time_limit: 300", site)[0]
    assert (
        "qos debug allows 2: set nodes_per_cell"
        in desk.refusal("qos: debug\nworkers: {nodes: 3}", site)[0]
    )
    assert "1 node in one cell, but qos big takes 4 or more" in desk.refusal("qos: big", site)[0]
    assert "site big has no qos 'debgu'; did you mean debug?" in desk.refusal("qos: debgu", site)[0]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("max_gpus: 3", "workers: 4 GPUs asked, site big allows 3"),
        ("max_replicas: 3", "models: 4 replicas asked, site big allows 3"),
        ("max_nodes: 2", "workers: 3 nodes asked, site big allows 2"),
        ("max_jobs: 1", "1 cells are 2 jobs to Slurm, which counts every component; site big"),
    ],
)
def test_ceilings_of_a_deployment(desk: Desk, limits: str, said: str) -> None:
    spec = (
        "workers: {nodes: 2}\nmodels: [{name: m, source: {package: p}, "
        "shards: [{name: base, replicas: 4}]}]"
    )
    desk.plan(spec)
    assert said in desk.refusal(spec, f"limits: {{{limits}}}")[0]


def test_no_more_nodes_than_there_are(desk: Desk) -> None:
    kinds = "node_kinds: {cpu: {cpus: 4}, gpu: {cpus: 64, mem_gib: 512, gpus: 4, count: 4}}"
    desk.plan("workers: {nodes: 4}", kinds)
    found = desk.refusal("workers: {nodes: 6, nodes_per_cell: 3}", kinds)
    assert "6 nodes of kind gpu asked, site big has 4" in found[0]


def test_steps(desk: Desk) -> None:
    found = desk.refusal("", "slurm: {max_steps: 1}")
    assert "2 components are as many steps; site big allows 1" in found[0]


def test_locked_keys_of_a_spec(desk: Desk) -> None:
    site = "locks: [spec.account, spec.models.engine.env, spec.gateway.bind, limits]"
    desk.plan("qos: high\ngateway: {port: 20001}", site)
    spec = (
        "account: a\ngateway: {bind: 0.0.0.0}\n"
        "models: [{name: m, source: {package: p}, engine: {env: {A: b}}}]"
    )
    found = desk.refusal(spec, site)
    assert [line.split(": ")[1] for line in found] == [
        "account",
        "models[0].engine.env",
        "gateway.bind",
    ]
    assert "locked by site big (" in found[0]
    assert "big.yaml:" in found[0]


def test_locks_name_keys_that_a_spec_has(desk: Desk) -> None:
    found = desk.refusal("", "locks: [spec.models.engine.evn, spec.models.engine.env.A]")
    assert len(found) == 1
    assert "locks[0]: a spec has no key 'models.engine.evn'; did you mean env?" in found[0]


def test_accounts_by_kind(desk: Desk, options: Options) -> None:
    kinds = (
        "node_kinds: {cpu: {cpus: 4, account_suffix: ''}, "
        "gpu: {cpus: 64, mem_gib: 512, gpus: 4, account_suffix: _g}}"
    )
    for account in ("m1", "m1_g"):
        plan = desk.plan(f"account: {account}", kinds)
        assert (options(plan, 0)["account"], options(plan, 1)["account"]) == ("m1", "m1_g")


def test_whole_nodes_for_jobs_of_several(desk: Desk, options: Options) -> None:
    kinds = "node_kinds: {gpu: {cpus: 64, mem_gib: 512, gpus: 4, exclusive: many}}"
    one = options(desk.plan("", kinds), 1)
    many = options(desk.plan("workers: {nodes: 2}", kinds), 1)
    assert ("exclusive" in one, one["gres"]) == (False, "gpu:1")
    assert ("exclusive" in many, many["gres"], many["mem"]) == (True, "gpu:4", "524288M")


def test_storage_by_account_and_login_variables(desk: Desk) -> None:
    site = "variables: [FAST]\nstorage: {shared: /scratch/$ACCOUNT, local: $FAST/x}"
    plan = desk.plan("account: p1", site, variables={"FAST": "/fast/exa1"})
    assert (plan.node.shared, plan.node.local) == ("/scratch/p1", "/fast/exa1/x")
    found = desk.refusal("", site)
    assert "account: is required: site big needs it for storage.shared" in found[0]
    assert "site: $FAST has no value in your environment, and site big needs it" in found[1]


def test_internet(desk: Desk) -> None:
    spec = "models: [{name: m, source: {hf: org/m}}]"
    assert desk.plan(spec).node.env == {}
    proxied = desk.plan(spec, "internet: {access: proxy, proxy: 'http://p:3128'}").node.env
    assert proxied["https_proxy"] == "http://p:3128"
    assert "http_proxy" not in proxied
    offline = desk.plan(spec, "internet: {access: none}\nenv: {HF_HOME: /hf}")
    assert offline.node.env == {"HF_HUB_OFFLINE": "1", "HF_HOME": "/hf"}
    assert [note for note in offline.notes if "hf download org/m" in note]
