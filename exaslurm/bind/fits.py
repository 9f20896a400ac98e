"""From the choice of GPUs and homes to cores, ports and memory: each the best for that choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from exaslurm.bind.cores import Request, deal
from exaslurm.bind.cost import home_of, memory_of
from exaslurm.bind.distance import Distances
from exaslurm.bind.flow import Flows, transport
from exaslurm.bind.options import Option, Options, Wanted, by_numa
from exaslurm.bind.parts import Fit, Free, Part, Want
from exaslurm.bind.ports import Ports, evenly
from exaslurm.core.topology import Core


def fits_of(
    free: Free,
    wants: Sequence[Want],
    chosen: Sequence[Option],
    options: Options,
    far: Distances,
    ports: Ports,
) -> list[Fit]:
    """What each replica gets. Like replicas are neighbours in ``wants``; among them, GPUs and
    homes are given in ascending order."""
    chosen = in_order(wants, chosen)
    total: Wanted = Counter()
    for option in chosen:
        total += option.wanted()
    found = transport(total, Counter(core.numa for core in free.cores), far.numa)
    assert found is not None, "the caller has counted the cores"
    replicas = _with_cores(free, chosen, options, found[1], far)
    fits = [Fit(parts=tuple(parts)) for parts in replicas]
    homes = [home_of(far, fit) for fit in fits for _ in fit.parts]
    cards = [part.gpu.gpu if part.gpu else None for fit in fits for part in fit.parts]
    names = iter(
        evenly(
            [ports.nearest(card, home)[1] for card, home in zip(cards, homes, strict=True)],
            free.port_use,
        )
    )
    fits = [
        Fit(parts=tuple(Part(gpu=p.gpu, cores=p.cores, port=next(names)) for p in fit.parts))
        for fit in fits
    ]
    _, memory = memory_of(free, wants, fits)
    return [Fit(parts=fit.parts, mem_nodes=nodes) for fit, nodes in zip(fits, memory, strict=True)]


def in_order(wants: Sequence[Want], chosen: Sequence[Option]) -> list[Option]:
    """The same choice, with GPUs and homes of like replicas in ascending order."""
    pairs = zip(wants, chosen, strict=True)
    return [
        option
        for _, group in groupby(pairs, key=lambda pair: pair[0])
        for _, option in sorted(group, key=lambda pair: (pair[1].gpus, by_numa(pair[1].home)))
    ]


def _with_cores(
    free: Free, chosen: Sequence[Option], options: Options, flows: Flows, far: Distances
) -> list[list[Part]]:
    """The parts with their cores: first come, nearest served."""
    asked: dict[int | None, list[tuple[tuple[int, int], Request]]] = {}
    for replica, option in enumerate(chosen):
        for rank, card in enumerate(options.cards(option)):
            near, wanted = option.near[rank], option.shares[rank]
            for numa in _nearest(near, flows, far):
                count = min(wanted, flows[near, numa])
                flows[near, numa] -= count
                wanted -= count
                if count:
                    is_near = card is not None and card.gpu.numa == numa
                    request = Request(count, card.gpu if card and is_near else None)
                    asked.setdefault(numa, []).append(((replica, rank), request))
    cores: dict[tuple[int, int], list[Core]] = {}
    for numa, pairs in asked.items():
        own = [core for core in free.cores if core.numa == numa]
        dealt = deal(free.topology, own, free.keep, [request for _, request in pairs])
        for (who, _), got in zip(pairs, dealt, strict=True):
            cores.setdefault(who, []).extend(got)
    return [
        [
            Part(gpu=card, cores=tuple(sorted(cores.get((replica, rank), []), key=_by_cpu)))
            for rank, card in enumerate(options.cards(option))
        ]
        for replica, option in enumerate(chosen)
    ]


def _nearest(near: int | None, flows: Flows, far: Distances) -> list[int | None]:
    """Where cores come from that should be at ``near``, itself first."""
    return sorted(
        (numa for wanted, numa in flows if wanted == near),
        key=lambda numa: (far.numa(near, numa), numa != near, by_numa(numa)),
    )


def _by_cpu(core: Core) -> tuple[int, ...]:
    return core.cpus
