"""Nodes of any shape, and a placement by looking at all of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from exaslurm.bind.cost import Cost, cost, distances, memory_of
from exaslurm.bind.distance import port_name
from exaslurm.bind.grant import free_memory, granted_cores, hand
from exaslurm.bind.options import even_shares
from exaslurm.bind.parts import Fit, Free, GrantedGpu, Part, Want
from exaslurm.core.fabric import usable_ports
from exaslurm.core.topology import Core, Gpu, GpuLink, Hca, HcaPort, NodeTopology, NumaNode


@st.composite
def topologies(
    draw: st.DrawFn, *, numa: int = 8, gpus: int = 16, hcas: int = 16, cores: int = 8
) -> NodeTopology:
    """At most so many NUMA nodes, GPUs and HCAs, and so many cores a NUMA node."""
    nodes = draw(st.integers(1, numa))
    threads = draw(st.sampled_from([1, 2]))
    sizes = draw(st.lists(st.integers(1, cores), min_size=nodes, max_size=nodes))
    caches = draw(st.sampled_from([None, 2, 4]))
    far = {
        pair: draw(st.sampled_from([11, 12, 20, 32]))
        for pair in itertools.combinations(range(nodes), 2)
    }
    knows = draw(st.booleans())
    memory = draw(st.sampled_from([1024, 4096, 65536]))
    found: list[Core] = []
    total = sum(sizes)
    for index, size in enumerate(sizes):
        for place in range(size):
            first = len(found)
            found.append(
                Core(
                    # As Linux counts: the second threads after all the first ones.
                    cpus=tuple(first + thread * total for thread in range(threads)),
                    package=index // 4,
                    numa=index,
                    l3=None if caches is None else 100 * index + place // caches,
                )
            )
    place_of = st.one_of(st.none(), st.integers(0, nodes - 1))
    bridges = st.integers(0, 2)

    def path(index: int | None) -> tuple[str, ...]:
        if index is None:
            return ()
        root, switch = draw(bridges), draw(bridges)
        return (f"pci{index}{root}", f"port{index}{root}", f"switch{index}{root}{switch}")

    cards = []
    for index in range(gpus - draw(st.integers(0, gpus))):
        at = draw(place_of)
        cards.append(
            Gpu(index=index, vendor="nvidia", pci=f"0000:{index:02x}:00.0", numa=at,
                pci_path=path(at))
        )  # fmt: skip
    devices = []
    for index in range(hcas - draw(st.integers(0, hcas))):
        at = draw(place_of)
        state = draw(st.sampled_from(["ACTIVE", "ACTIVE", "DOWN"]))
        rate = draw(st.sampled_from([200.0, 200.0, 25.0]))
        port = HcaPort(number=1, state=state, rate_gbps=rate, link_layer="InfiniBand")
        devices.append(
            Hca(
                name=f"mlx5_{index}", fabric="infiniband", ports=(port,), numa=at, pci_path=path(at)
            )
        )
    pairs = list(itertools.combinations(range(len(cards)), 2))
    linked = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8)) if pairs else []
    return NodeTopology(
        host="n0",
        cores=tuple(found),
        numa=tuple(
            NumaNode(
                index=i,
                kind="cpu",
                cpus=tuple(sorted(cpu for core in found if core.numa == i for cpu in core.cpus)),
                mem_mib=memory,
                distances=tuple(10 if i == k else far[min(i, k), max(i, k)] for k in range(nodes))
                if knows
                else (),
            )
            for i in range(nodes)
        ),
        gpus=tuple(cards),
        hcas=tuple(sorted(devices, key=lambda hca: hca.name)),
        links=tuple(
            GpuLink(a=a, b=b, kind="nvlink", lanes=draw(st.sampled_from([1, 2, 4])))
            for a, b in linked
        ),
    )


@st.composite
def grants(draw: st.DrawFn, topology: NodeTopology) -> tuple[tuple[int, ...], list[GrantedGpu]]:
    """CPUs and GPUs that Slurm gave: all, all but some, or one thread of each core."""
    cpus = topology.cpus
    how = draw(st.sampled_from(["all", "threads", "holes"]))
    if how == "threads":
        cpus = tuple(core.cpus[0] for core in topology.cores)
    elif how == "holes":
        holes = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) // 2))
        cpus = tuple(cpu for cpu in cpus if cpu not in holes) or cpus
    gone = draw(st.sets(st.integers(0, 15), max_size=2))
    kept = [gpu for gpu in topology.gpus if gpu.index not in gone]
    # As in a step with its own devices: the numbers begin at 0 again.
    return cpus, [GrantedGpu(visible_id=str(i), gpu=gpu) for i, gpu in enumerate(kept)]


@st.composite
def wants_for(
    draw: st.DrawFn, cpus: Sequence[int], gpus: Sequence[GrantedGpu], *, most: int, size: int
) -> list[Want]:
    """Replicas that mostly have room: at most ``most``, with at most ``size`` GPUs and CPUs."""
    cards, threads = len(gpus), len(cpus)
    found = []
    for left in range(draw(st.integers(1, most)), 0, -1):
        gpu = draw(st.integers(0, min(size, cards)))
        cpu = draw(st.integers(1, max(1, min(size, threads // left))))
        alike = draw(st.booleans()) and bool(found)
        want = Want(gpus=gpu, cpus=cpu, mem_mib=draw(st.sampled_from([0, 512, 2048])))
        found.append(found[-1] if alike and found[-1].gpus <= cards else want)
        cards -= found[-1].gpus
        threads -= found[-1].cpus
    return found


def all_free(
    topology: NodeTopology, cpus: Sequence[int], gpus: Sequence[GrantedGpu], wants: Sequence[Want]
) -> Free:
    """Nothing is taken yet; the first core is the agent's."""
    granted = granted_cores(topology, cpus)
    given = hand(granted, wants)
    return Free(
        topology=topology,
        cores=given.cores,
        width=given.width,
        down=given.down,
        gpus=tuple(gpus),
        ports=usable_ports(topology.hcas),
        keep=granted[0].cpus[0],
        mem_mib=free_memory(topology, {}),
    )


def brute_force(free: Free, wants: Sequence[Want]) -> Cost:
    """The least cost of all placements. Cores of a NUMA node cost the same (but for the one that is
    kept, which is the last), so one of each number is tried; all GPUs, all numbers and all ports
    are."""
    best: Cost | None = None
    for gpus in _gpu_choices(free, wants):
        near = distances(free.topology).among
        price = sum(near([free.gpus[i].gpu for i in own]) for own in gpus)
        if best is not None and price > best.gpus:
            continue
        for fits in _core_choices(free, wants, gpus):
            bare = cost(free, wants, fits)
            if best is not None and bare[:3] > best[:3]:
                continue
            for ported in _port_choices(free, fits):
                found = cost(free, wants, ported)
                if best is None or found < best:
                    best = found
    assert best is not None
    return best


def _gpu_choices(free: Free, wants: Sequence[Want]) -> Iterator[tuple[tuple[int, ...], ...]]:
    def pick(place: int, left: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if place == len(wants):
            yield ()
            return
        for own in itertools.combinations(left, wants[place].gpus):
            for rest in pick(place + 1, tuple(i for i in left if i not in own)):
                yield (own, *rest)

    yield from pick(0, tuple(range(len(free.gpus))))


def _core_choices(
    free: Free, wants: Sequence[Want], gpus: tuple[tuple[int, ...], ...]
) -> Iterator[list[Fit]]:
    parts: list[tuple[int, GrantedGpu | None, int]] = []
    for replica, (want, own) in enumerate(zip(wants, gpus, strict=True)):
        cards = [free.gpus[i] for i in own] or [None]
        shares = even_shares(free.cores_of(want), [c.gpu.numa if c else None for c in cards])
        parts += [(replica, c, n) for c, n in zip(cards, shares, strict=True)]
    by_numa: dict[int | None, list[Core]] = {}
    for core in sorted(free.cores, key=lambda core: core.cpus[0] == free.keep):
        by_numa.setdefault(core.numa, []).append(core)

    def pick(place: int, used: Counter[int | None]) -> Iterator[list[Part]]:
        if place == len(parts):
            yield []
            return
        _, card, count = parts[place]
        for numbers in _splits(count, [len(own) - used[k] for k, own in by_numa.items()]):
            taken = [
                core
                for (k, own), number in zip(by_numa.items(), numbers, strict=True)
                for core in own[used[k] : used[k] + number]
            ]
            more = Counter(dict(zip(by_numa, numbers, strict=True)))
            for rest in pick(place + 1, used + more):
                yield [Part(gpu=card, cores=tuple(taken)), *rest]

    for found in pick(0, Counter()):
        yield [
            Fit(parts=tuple(p for p, (owner, _, _) in zip(found, parts, strict=True) if owner == i))
            for i in range(len(wants))
        ]


def _splits(count: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not room:
        if count == 0:
            yield ()
        return
    for number in range(min(count, room[0]), -1, -1):
        for rest in _splits(count - number, room[1:]):
            yield (number, *rest)


def _port_choices(free: Free, fits: Sequence[Fit]) -> Iterator[list[Fit]]:
    names: list[str | None] = [port_name(pair) for pair in free.ports]
    number = sum(len(fit.parts) for fit in fits)
    for chosen in itertools.product(names or [None], repeat=number):
        left = iter(chosen)
        yield [
            Fit(parts=tuple(Part(gpu=p.gpu, cores=p.cores, port=next(left)) for p in fit.parts))
            for fit in fits
        ]


def check_fits(free: Free, wants: Sequence[Want], fits: Sequence[Fit]) -> None:
    """What holds for every placement: nothing twice, nothing that is not free, enough of all."""
    cpus = [cpu for fit in fits for cpu in fit.cpus]
    assert len(cpus) == len(set(cpus))
    assert {core for fit in fits for core in fit.cores} <= set(free.cores)
    ids = [part.gpu.visible_id for fit in fits for part in fit.parts if part.gpu]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {gpu.visible_id for gpu in free.gpus}
    names = {port_name(pair) for pair in free.ports}
    price, _ = memory_of(free, wants, fits)
    memory = {node.index for node in free.topology.memory_nodes}
    for want, fit in zip(wants, fits, strict=True):
        assert len([part for part in fit.parts if part.gpu]) == want.gpus
        assert len(fit.cores) == free.cores_of(want)
        assert len(fit.cpus) >= want.cpus or (free.down and len(fit.cpus) > want.cpus - free.width)
        assert all(part.port in names if names else part.port is None for part in fit.parts)
        assert set(fit.mem_nodes) <= memory
        if fit.mem_nodes and not price:
            # There is room: memory is where the cores are, and nowhere else.
            assert set(fit.mem_nodes) == {core.numa for core in fit.cores} - {None}
        assert bool(fit.mem_nodes) == (
            len(memory) > 1 and any(core.numa is not None for core in fit.cores)
        )
