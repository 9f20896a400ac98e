"""Plans: layouts, cells, slots, counts, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.codec import dumps, loads
from exaslurm.core.limits import Limits
from exaslurm.core.plan import Plan, ReplicaSet
from exaslurm.plan.planner import PlanContext, make_plan
from exaslurm.site.load import load_site
from exaslurm.spec.load import load_spec

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONTEXT = PlanContext(user="exa1", home="/home/exa1", python="/venv/bin/python")

Desk = Any


def example(name: str) -> Plan:
    spec = load_spec(EXAMPLES / f"{name}.yaml")
    return make_plan(spec, load_site(spec.site, {"HOME": "/home/exa1"}), CONTEXT)


def replicas(plan: Plan) -> int:
    return sum(item.count for cell in plan.cells for item in cell.replica_sets)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_examples_give_plans_that_survive_json(name: str) -> None:
    plan = example(name)
    assert plan.is_sealed()
    assert loads(Plan, dumps(plan), where="plan.json") == plan
    assert example(name) == plan


def test_the_lab() -> None:
    plan = example("lab")
    assert plan.layout == "het"
    (cell,) = plan.cells
    head, workers = cell.components
    assert head.directives == (
        ("partition", "cpu"),
        ("nodes", "1"),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", "1"),
        ("mem", "4096M"),
        ("time", "01:00:00"),
        ("no-kill", None),
        ("no-requeue", None),
        ("signal", "B:USR1@120"),
    )
    # Two deployments fit on the same nodes: only what is needed is asked for, and no GPU.
    assert workers.directives == (
        ("partition", "gpu"),
        ("nodes", "3"),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", "2"),
        ("mem", "6144M"),
        ("time", "01:00:00"),
        ("no-kill", None),
        ("no-requeue", None),
        ("signal", "B:USR1@120"),
    )
    assert (head.role, workers.role) == ("head", "worker")
    assert cell.replica_sets == (ReplicaSet(model="smollm2-135m", shard="base", count=3),)
    (model,) = plan.models
    assert (model.slot.gpus, model.slot.cores, model.slot.mem_gib) == (0, 1, 4.0)
    assert model.shards[0].served_names == ("smollm2-135m", "smollm2-135m:base")
    assert plan.node.shared == "/exa/shared/scratch/exa1"
    assert plan.gateway.start_with_submit


def test_without_heterogeneous_jobs_the_first_worker_leads(desk: Desk) -> None:
    spec = "site: lab\nworkers: {nodes: 3}"
    plan = desk.plan(spec, "slurm: {hetjobs: false}\n", base="lab")
    assert plan.layout == "single"
    (part,) = plan.cells[0].components
    assert (part.het_group, part.role, part.kind, part.nodes) == (0, "both", "gpu", 3)
    # The head's share is in the place of the agent's and Ray's.
    assert (part.cpus_per_node, part.mem_mib_per_node) == (2, 8 * 1024)


def test_one_machine(desk: Desk) -> None:
    plan = example("local")
    assert plan.layout == "local"
    (part,) = plan.cells[0].components
    assert (part.role, part.directives, part.nodes) == ("both", (), 1)
    assert not plan.ray.enabled
    assert plan.node.python == "/venv/bin/python"
    assert plan.node.shared == "/home/exa1/.cache"
    assert desk.plan("ray: true", base="local").ray.enabled


def test_the_large_one() -> None:
    start = time.process_time()
    plan = example("aurora-scale")
    assert time.process_time() - start < 0.5
    assert len(plan.cells) == 16
    assert {cell.replica_sets for cell in plan.cells} == {plan.cells[0].replica_sets}
    assert [item.count for item in plan.cells[0].replica_sets] == [24] * 8
    assert replicas(plan) == 3072
    assert plan.cells[15].name == "c015"
    # Cells differ in nothing but their name.
    assert {cell.components for cell in plan.cells} == {plan.cells[0].components}
    assert plan.cells[0].components[1].gpus_per_node == 12


def test_nodes_are_spread_over_cells_evenly(desk: Desk) -> None:
    plan = desk.plan("workers: {nodes: 20, nodes_per_cell: 7, min_nodes: 10}")
    parts = [cell.components[1] for cell in plan.cells]
    assert [part.nodes for part in parts] == [7, 7, 6]
    assert [part.min_nodes for part in parts] == [4, 4, 3]


def test_several_kinds_of_worker(desk: Desk) -> None:
    workers = "workers: [{kind: gpu, nodes: 4, nodes_per_cell: 2}, {kind: login, nodes: 1}]"
    plan = desk.plan(workers)
    shapes = [[(part.kind, part.nodes) for part in cell.components] for cell in plan.cells]
    # The one login node is in the first cell; the other has no component for it.
    assert shapes == [[("login", 1), ("gpu", 2), ("login", 1)], [("login", 1), ("gpu", 2)]]
    assert [part.het_group for part in plan.cells[0].components] == [0, 1, 2]


def test_a_replica_gets_its_share_of_the_node(desk: Desk) -> None:
    (model,) = desk.plan().models
    # One GPU of four: a quarter of 62 cores less one for the agent, of 512 GiB less 2.
    assert (model.slot.gpus, model.slot.cores, model.slot.mem_gib) == (1, 15, 127.5)
    assert model.engine.device == "cuda"
    text = "models: [{name: m, source: {package: p}, parallel: {tensor: 4}}]"
    (model,) = desk.plan(text).models
    assert (model.slot.gpus, model.slot.cores, model.slot.mem_gib) == (4, 61, 510.0)


def test_replicas_without_gpus_share_the_node_by_their_number(desk: Desk) -> None:
    model = (
        "{name: m, source: {package: p}, engine: {device: cpu}, shards: [{name: a, replicas: 6}]}"
    )
    (planned,) = desk.plan(f"workers: {{nodes: 2}}\nmodels: [{model}]").models
    assert (planned.slot.gpus, planned.slot.cores, planned.slot.mem_gib) == (0, 20, 170.0)


def test_what_is_asked_for_a_node_is_what_the_fullest_one_needs(desk: Desk) -> None:
    text = "models: [{name: m, source: {package: p}, shards: [{name: a, replicas: 3}]}]"
    part = desk.plan(f"workers: {{nodes: 2}}\n{text}").cells[0].components[1]
    assert part.gpus_per_node == 2
    assert part.cpus_per_node == 2 * 15 + 1
    assert part.mem_mib_per_node == round(2 * 127.5 * 1024) + 2 * 1024


def test_whole_nodes_where_the_site_gives_only_those(desk: Desk) -> None:
    kinds = (
        "node_kinds:\n  login: {cpus: 32, mem_gib: 128, exclusive: yes}\n"
        "  gpu: {cpus: 64, mem_gib: 512, gpus: 4, reserved_cores: 8, exclusive: yes}"
    )
    head, part = desk.plan("", kinds).cells[0].components
    assert (head.cpus_per_node, head.mem_mib_per_node) == (32, 128 * 1024)
    assert (part.cpus_per_node, part.mem_mib_per_node) == (56, 512 * 1024)
    assert part.gpus_per_node == 4
    assert ("exclusive", None) in part.directives


def test_every_cell_has_every_shard(desk: Desk) -> None:
    shards = ", ".join(f"{{name: s{i}, replicas: 4}}" for i in range(6))
    plan = desk.plan(
        "workers: {nodes: 8, nodes_per_cell: 4}\n"
        f"models: [{{name: m, source: {{package: p}}, shards: [{shards}]}}]"
    )
    counts = [[item.count for item in cell.replica_sets] for cell in plan.cells]
    assert counts == [[2] * 6, [2] * 6]


def test_large_replicas_are_placed_before_small_ones_fill_the_gaps(desk: Desk) -> None:
    small = "{name: small, source: {package: p}, shards: [{name: a, replicas: 4}]}"
    large = "{name: large, source: {package: p}, parallel: {tensor: 4}}"
    plan = desk.plan(f"workers: {{nodes: 2}}\nmodels: [{small}, {large}]")
    assert replicas(plan) == 5


def test_adapters_are_refused_before_anything_is_submitted(desk: Desk) -> None:
    (found,) = desk.refusal("models: [{name: m, source: {path: /x}, shards: [{name: a, lora: y}]}]")
    assert "models[0].shards[0].lora: LoRA adapters are not served" in found


def test_paths_of_models(desk: Desk) -> None:
    def source(path: str) -> str:
        text = (
            f"models: [{{name: m, source: {{path: '{path}'}}, engine: {{kind: simulated}}, "
            "shards: [{name: a, lora: x/y}]}]"
        )
        (model,) = desk.plan(text).models
        assert model.shards[0].lora == "/specs/x/y"
        return str(model.source.value)

    assert source("models/tiny") == "/specs/models/tiny"
    assert source("../tiny") == "/tiny"
    assert source("~/tiny") == "/home/exa1/tiny"
    assert source("/a/$USER/tiny") == "/a/exa1/tiny"
    (found,) = desk.refusal("models: [{name: m, source: {path: $WORK/x}}]")
    assert "models[0].source.path: only $HOME and $USER are understood, not $WORK" in found


def test_names_that_clients_may_use(desk: Desk) -> None:
    text = "models: [{name: m, source: {package: p}, shards: [{name: a}, {name: b}]}]"
    (model,) = desk.plan(text).models
    assert [shard.served_names for shard in model.shards] == [("m", "m:a"), ("m:b",)]


def test_shell_of_site_and_spec_comes_in_order(desk: Desk) -> None:
    site = "modules: [cuda/12.4]\nprologue: [source /etc/profile]\nenv: {A: $HOME/x}\n"
    plan = desk.plan("slurm: {prologue: [export B=1]}", site)
    assert plan.node.modules == ("cuda/12.4",)
    assert plan.node.prologue == ("source /etc/profile", "export B=1")
    assert plan.node.env == {"A": "/home/exa1/x"}


def test_gateway_processes_and_certificate(desk: Desk) -> None:
    plan = desk.plan("gateway: {workers: 3, tls: {cert: /pem//cert.pem, key: ~/key.pem}}")
    assert plan.gateway.workers == 3
    assert plan.gateway.tls is not None
    assert plan.gateway.tls.cert == "/pem/cert.pem"
    assert plan.gateway.tls.key == "/home/exa1/key.pem"
    assert desk.plan("").gateway.tls is None
    assert not any("gateway" in note for note in plan.notes)


def test_audit(desk: Desk) -> None:
    assert desk.plan("").gateway.audit
    plan = desk.plan("gateway: {audit: no, audit_gib: 2.5}")
    assert (plan.gateway.audit, plan.gateway.audit_gib) == (False, 2.5)


def test_limits(desk: Desk) -> None:
    assert desk.plan("").gateway.limits == Limits()
    plan = desk.plan(
        "gateway: {limits: {max_in_flight: 5, max_in_flight_per_replica: 2, max_waiting: 0, "
        "max_waiting_per_key: 3, wait_s: 1, max_body_mib: 0.5, direct_s: 600}}"
    )
    assert plan.gateway.limits == Limits(
        max_in_flight=5,
        max_in_flight_per_replica=2,
        max_waiting=0,
        max_waiting_per_key=3,
        wait_s=1.0,
        max_body_mib=0.5,
        direct_s=600.0,
    )
    assert plan.gateway.limits.max_body_bytes == 512 * 1024
    assert not any("limits" in note for note in plan.notes)
    assert loads(Plan, dumps(plan), where="plan.json") == plan


def test_notes_on_what_has_no_effect(desk: Desk) -> None:
    plan = desk.plan(
        (
            "gateway: {policy: power_of_two, audit: no}\n"
            "models: [{name: m, source: {package: p}, shards: [{name: a, intents: [code]}]}]"
        ),
        "unverified: [slurm.gres]\n",
    )
    assert plan.notes == (
        "models[0].shards[0].intents: read, but this version does not act on it",
        "site big: not confirmed on the machine: slurm.gres",
    )


TP = "models: [{{name: m, source: {{package: p}}, parallel: {{tensor: {0}, pipeline: {1}}}}}]"
PER = "models: [{{name: m, source: {{package: p}}, per_replica: {{{0}}}}}]"
COUNT = "models: [{{name: m, source: {{package: p}}, shards: [{{name: a, replicas: {0}}}]}}]"


@pytest.mark.parametrize(
    ("spec", "site", "said"),
    [
        ("workers: {kind: gpus}", "", "workers.kind: site big has no node kind 'gpus'; did you"),
        ("workers: [{kind: gpu}, {kind: gp}]", "", "workers[1].kind: site big has no node kind"),
        ("head: {kind: logn}", "", "head.kind: site big has no node kind 'logn'; did you mean"),
        ("head: {cpus: 33}", "", "head.cpus: 33 asked, node kind login has 32"),
        ("head: {mem_gib: 129}", "", "head.mem_gib: 129 asked, node kind login has 128"),
        (
            "workers: {nodes: 2, min_nodes: 3}",
            "",
            "workers.min_nodes: 3 is more than nodes, 2",
        ),
        (
            TP.format(8, 1),
            "",
            "models[0].parallel.tensor: 8 asked, but a node has 4 GPUs at most, and a tensor-paral",
        ),
        (
            TP.format(1, 8),
            "",
            "models[0].parallel.pipeline: a replica takes 2 nodes of one cell, and a cell has 1",
        ),
        (
            PER.format("gpus: 2"),
            "",
            "models[0].per_replica.gpus: 2 asked, but parallel.tensor x parallel.pipeline is 1",
        ),
        (
            "models: [{name: m, engine: {kind: simulated}, per_replica: {gpus: 8}}]",
            "",
            "models[0].per_replica.gpus: 8 asked, node kind gpu has 4",
        ),
        (
            (
                "workers: {kind: login}\n"
                "models: [{name: m, source: {package: p}, engine: {device: cuda}}]"
            ),
            "",
            "models[0].engine.device: cuda asks for 1 GPU a replica, node kind login has 0",
        ),
        (
            PER.format("cores: 63"),
            "",
            "models[0].per_replica.cores: 63 asked, node kind gpu has 62",
        ),
        (
            PER.format("mem_gib: 511"),
            "",
            (
                "models[0].per_replica.mem_gib: 511 asked, node kind gpu has 510 (2 GiB more are "
                "for agent and Ray)"
            ),
        ),
        (
            COUNT.format(9) + "\nworkers: {nodes: 2}",
            "",
            (
                "models[0].shards[0].replicas: 9 asked, but only 8 have room: a replica takes 1 "
                "GPU, 15 cores, 127.5 GiB and at most 16 go on a node; there are 2 nodes of kind "
                "gpu (4 GPUs, 62 cores, 510 GiB for replicas)"
            ),
        ),
        (
            (
                "models: [{name: m, engine: {kind: simulated}, max_replicas_per_node: 2, "
                "shards: [{name: a, replicas: 3}]}]"
            ),
            "",
            "models[0].shards[0].replicas: 3 asked, but only 2 have room",
        ),
        (
            "models: [{name: m, source: {package: p}, max_replicas_per_node: 41}]",
            "",
            "models[0].max_replicas_per_node: 41 asked, but a node has ports for 40",
        ),
        ("gateway: {home: login}", "", "gateway.home: login asked, site big allows service"),
        ("gateway: {home: job}", "", "gateway.home: job asked, site big allows service"),
        (
            "gateway: {tls: {cert: /a/$WORK, key: /b}}",
            "",
            "gateway.tls.cert: only $HOME and $USER are understood, not $WORK",
        ),
        ("workers: {nodes: 9}", "limits: {max_nodes: 9}", "workers: 10 nodes asked, site big allo"),
        (
            "workers: {nodes: 4, nodes_per_cell: 1}",
            "limits: {max_jobs: 7}",
            "workers: 4 cells are 8 jobs to Slurm, which counts every component; site big allows 7",
        ),
        (
            "workers: {nodes: 9}",
            "partitions: {serial: {}, gpus: {max_nodes: 8}}",
            "workers: 9 nodes in one cell, but partition gpus allows 8: set nodes_per_cell",
        ),
        (
            "partition: gpu",
            "partitions: {serial: {}, gpus: {}}",
            "partition: site big has no partition 'gpu'; did you mean gpus?",
        ),
        (
            "time_limit: 1-00:00:01",
            "partitions: {serial: {}, gpus: {max_time: 1-0}}",
            "time_limit: 1-00:00:01 asked, partition gpus allows 1-0",
        ),
        ("time_limit: UNLIMITED", "limits: {max_time: 60}", "UNLIMITED asked, site big allows 60"),
        (
            "qos: debug",
            "slurm: {mandatory_directives: [account, time, wckey]}",
            "account: site big asks for --account with every job",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(desk: Desk, spec: str, site: str, said: str) -> None:
    found = desk.refusal(spec, site)
    assert any(line.startswith("/specs/hello.yaml:") and said in line for line in found), found


def test_all_refusals_come_at_once(desk: Desk) -> None:
    found = desk.refusal("head: {cpus: 99}\nworkers: {nodes: 1, min_nodes: 2}")
    assert len(found) == 2
    found = desk.refusal("gateway: {home: login}\ntime_limit: 90", "limits: {max_time: 60}")
    assert len(found) == 2


def test_one_kind_only_without_heterogeneous_jobs(desk: Desk) -> None:
    workers = "workers: [{kind: gpu}, {kind: login}]"
    (found,) = desk.refusal(workers, "slurm: {hetjobs: false}")
    assert "workers: 2 kinds of node asked, but site big has no heterogeneous jobs" in found
    (found,) = desk.refusal("head: {kind: login}", "slurm: {hetjobs: false}")
    assert "head.kind: login asked, but on site big a worker node carries the head" in found


def test_one_machine_is_one_node(desk: Desk) -> None:
    (found,) = desk.refusal("workers: {nodes: 2}", base="local")
    assert "workers: site local is one machine" in found
