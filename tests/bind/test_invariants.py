"""What holds for every binding, on nodes of any shape."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.bind.binder import bind_cell, choose_node, replica_ids
from exaslurm.core.binding import CellBinding
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import Plan
from exaslurm.core.topology import Hca, HcaPort, NodeTopology, NumaNode
from exaslurm.errors import BindingMismatch


@st.composite
def hca(draw: st.DrawFn, name: str) -> Hca:
    port = HcaPort(
        number=1,
        state=draw(st.sampled_from(["ACTIVE", "DOWN"])),
        rate_gbps=draw(st.sampled_from([100.0, 200.0])),
        link_layer="InfiniBand",
    )
    numa = draw(st.one_of(st.none(), st.integers(0, 3)))
    return Hca(name=name, fabric="infiniband", ports=(port,), numa=numa)


@st.composite
def nodes(draw: st.DrawFn, count: int) -> list[NodeFacts]:
    found = []
    for order in range(count):
        cpus = sorted(draw(st.sets(st.integers(0, 63), min_size=1, max_size=24)))
        domains = draw(st.integers(1, 4))
        parts = [tuple(cpus[i::domains]) for i in range(domains)]
        gpus = draw(st.integers(0, 4))
        found.append(
            NodeFacts(
                node=f"n{order}",
                het_group=1,
                order=order,
                address=f"10.0.0.{order + 1}",
                agent_port=20010,
                port_base=20000 + 500 * draw(st.integers(0, 3)),
                cpus=tuple(cpus),
                cpus_granted=draw(st.sampled_from([len(cpus), None, 2 * len(cpus), 1])),
                mem_mib=draw(st.integers(1, 64)) * 1024,
                gpus=tuple(
                    GpuFact(
                        visible_id=str(i),
                        vendor="amd",
                        numa=draw(st.one_of(st.none(), st.integers(0, 3))),
                    )
                    for i in range(gpus)
                ),
                topology=NodeTopology(
                    host=f"n{order}",
                    numa=tuple(
                        NumaNode(index=i, kind="cpu", cpus=part, mem_mib=1024)
                        for i, part in enumerate(parts)
                    ),
                    hcas=tuple(draw(hca(f"mlx5_{i}")) for i in range(draw(st.integers(0, 3)))),
                ),
                switch=draw(st.sampled_from([None, "a", "b"])),
            )
        )
    return found


slots = st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 8), st.integers(1, 8))


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_every_binding(data: st.DataObject, plan_of: Any, model: Any) -> None:
    wanted = data.draw(st.lists(st.tuples(slots, st.integers(1, 6)), min_size=1, max_size=3))
    models = [
        model(f"m{i}", gpus=slot[0], cores=slot[1], mem_gib=slot[2], most=slot[3])
        for i, (slot, _) in enumerate(wanted)
    ]
    sets = [(f"m{i}", "a", count) for i, (_, count) in enumerate(wanted)]
    planned = data.draw(st.integers(1, 5))
    plan = plan_of(models, sets, nodes=planned)
    present = data.draw(nodes(data.draw(st.integers(1, planned))))
    try:
        binding = bind_cell(plan, plan.cells[0], present)
    except BindingMismatch as error:
        assert "c000-r" in str(error)  # noqa: PT017 - both outcomes are right, each with its check
        return
    check(plan, binding, {facts.node: facts for facts in present}, planned)
    shuffled = list(present)
    random.Random(data.draw(st.integers())).shuffle(shuffled)
    assert bind_cell(plan, plan.cells[0], shuffled) == binding
    check_replacement(plan, binding, present)


def check(plan: Plan, binding: CellBinding, nodes: dict[str, NodeFacts], planned: int) -> None:
    ids = [replica.id for replica in binding.replicas]
    all_ids = [replica for replica, _, _ in replica_ids(plan.cells[0])]
    assert ids == [replica for replica in all_ids if replica in set(ids)]
    # With all nodes there, all replicas are; else those left out are named.
    missing = set(all_ids) - set(ids)
    assert not missing or len(nodes) < planned
    assert all(any(note.startswith(f"{replica} ") for note in binding.notes) for replica in missing)
    by_node: dict[str, list[Any]] = defaultdict(list)
    for replica in binding.replicas:
        by_node[replica.node].append(replica)
    for name, replicas in by_node.items():
        facts = nodes[name]
        pinned = [core for replica in replicas if replica.pinned for core in replica.cores]
        assert len(pinned) == len(set(pinned))
        gpus = [gpu for replica in replicas for gpu in replica.gpus]
        assert len(gpus) == len(set(gpus))
        assert set(gpus) <= {gpu.visible_id for gpu in facts.gpus}
        slots = [replica.slot for replica in replicas]
        assert len(slots) == len(set(slots))
        assert len({replica.port for replica in replicas}) == len(replicas)
        assert all(count <= plan.model(m).max_replicas_per_node for m, count in counts(replicas))
        for replica in replicas:
            slot = plan.model(replica.model).slot
            assert len(replica.gpus) == slot.gpus
            assert set(replica.cores) <= set(facts.cpus)
            assert replica.cores == tuple(sorted(replica.cores))
            assert len(replica.cores) == (slot.cores if replica.pinned else len(facts.cpus))
            assert not replica.pinned or facts.cpus_granted == len(facts.cpus)
            home = {cpu: node.index for node in facts.topology.numa for cpu in node.cpus}
            if replica.remark is None and replica.mem_nodes:
                assert {home[cpu] for cpu in replica.cores} == set(replica.mem_nodes)
            active = {
                f"{hca.name}:1" for hca in facts.topology.hcas if hca.ports[0].state == "ACTIVE"
            }
            assert set((replica.hca or "").split(",")) <= (active or {""})


def counts(replicas: list[Any]) -> list[tuple[str, int]]:
    return list(Counter(replica.model for replica in replicas).items())


def check_replacement(plan: Plan, binding: CellBinding, present: list[NodeFacts]) -> None:
    """Any replica can be placed again where there was room for it a moment ago."""
    for gone in binding.replicas:
        placed = [replica for replica in binding.replicas if replica is not gone]
        again = choose_node(
            plan,
            plan.cells[0],
            replica=gone.id,
            model=gone.model,
            shard=gone.shard,
            placed=placed,
            nodes=present,
        )
        beside = [replica for replica in placed if replica.node == again.node]
        assert not {gpu for replica in beside for gpu in replica.gpus} & set(again.gpus)
        assert again.slot not in {replica.slot for replica in beside}
        if again.pinned:
            taken = {core for replica in beside if replica.pinned for core in replica.cores}
            assert not taken & set(again.cores)
