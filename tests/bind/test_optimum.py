"""The placement on one node: valid on any, near where it can be, never worse than brute force."""

from __future__ import annotations

import os
import time
from collections import Counter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from exaslurm.bind.cost import cost, distances, far_cores, home_of
from exaslurm.bind.optimum import optimum
from exaslurm.bind.parts import Want
from exaslurm.core.topology import NodeTopology
from tests.bind.topologies import all_free, brute_force, check_fits, grants, topologies, wants_for


def examples(number: int) -> int:
    """So many in every run; EXASLURM_EXAMPLES asks for more."""
    return int(os.environ.get("EXASLURM_EXAMPLES") or number)


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_never_worse_than_brute_force(data: st.DataObject) -> None:
    topology = data.draw(topologies(numa=3, gpus=4, hcas=3, cores=3))
    cpus, gpus = data.draw(grants(topology))
    wants = data.draw(wants_for(cpus, gpus, most=3, size=4))
    free = all_free(topology, cpus, gpus, wants)
    fits = optimum(free, wants)
    if fits is None:
        asked = sum(free.cores_of(want) for want in wants)
        assert sum(want.gpus for want in wants) > len(gpus) or asked > len(free.cores)
        return
    check_fits(free, wants, fits)
    found, best = cost(free, wants, fits), brute_force(free, wants)
    if best.cores:
        # Which of the far cores a replica gets decides on the rest, and is not searched for.
        assert found[:2] == best[:2]
    else:
        assert found == best


# A large node is no clearer when it is a little smaller, and takes minutes to become so.
@settings(
    deadline=None, max_examples=examples(40), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
@given(data=st.data())
def test_any_node(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    cpus, gpus = data.draw(grants(topology))
    wants = data.draw(wants_for(cpus, gpus, most=16, size=16))
    free = all_free(topology, cpus, gpus, wants)
    began = time.process_time()
    fits = optimum(free, wants)
    assert time.process_time() - began < 20.0
    if fits is None:
        return
    check_fits(free, wants, fits)
    assert optimum(free, wants) == fits
    left = Counter(core.numa for core in free.cores)
    left.subtract(core.numa for fit in fits for core in fit.cores)
    far = distances(topology)
    for fit in fits:
        if not far_cores(far, fit):
            continue
        # Something is far: then there is no room for it where it should be.
        home = home_of(far, fit)
        for part in fit.parts:
            near = part.gpu.gpu.numa if part.gpu and part.gpu.gpu.numa is not None else home
            away = sum(far.numa(near, core.numa) > 0 for core in part.cores)
            assert left[near] == 0 or not away


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_replicas_without_gpus_are_not_split_where_each_has_a_numa_node(
    data: st.DataObject,
) -> None:
    topology: NodeTopology = data.draw(topologies(gpus=0))
    size = data.draw(st.integers(1, 4))
    wants = [Want(gpus=0, cpus=size, mem_mib=0)] * data.draw(st.integers(1, 8))
    free = all_free(topology, topology.cpus, [], wants)
    fits = optimum(free, wants)
    room = Counter(core.numa for core in free.cores)
    number = free.cores_of(wants[0])
    if sum(count // number for count in room.values()) >= len(wants):
        assert fits is not None
        assert all(len({core.numa for core in fit.cores}) == 1 for fit in fits)
