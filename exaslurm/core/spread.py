"""Whether every shard outlives losses: any so many nodes, any switch, any cell. Pure and exact.

A replica ends with any of its nodes, with any switch that all ways to one of them lead through,
and with its cell. A shard outlives the loss of any k things if no k of them together end all of
its replicas; ``fatal`` looks for such k things and finds them if they exist, so what it does not
find is proved not to be there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Thing = Literal["nodes", "switches", "cells"]
_ONE: dict[Thing, str] = {"nodes": "node", "switches": "switch", "cells": "cell"}
MAX_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What every shard shall outlive: the loss of any so many nodes, or switches, or cells.

    The node that leads a cell counts as its cell, because the cell's job ends with it.
    ``demanded`` are those that the user asked for, so that a plan without them is refused; the
    others are tried.
    """

    nodes: int = 2
    switches: int = 1
    cells: int = 1
    demanded: tuple[Thing, ...] = ()

    @property
    def anchors(self) -> int:
        """Replicas of a shard that have to be apart for this."""
        return 1 + max(self.nodes, self.switches, self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one replica stands. ``switches`` are those above any of its nodes."""

    shard: str
    cell: str
    nodes: frozenset[str]
    switches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """A shard that does not outlive the loss of ``limit`` things: ``lost`` of them end it."""

    shard: str
    thing: Thing
    limit: int
    lost: tuple[str, ...]
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found. ``outlived`` are the numbers that every shard outlives; ``without`` says
    why a thing was not looked at."""

    outlived: tuple[tuple[Thing, int], ...]
    weak: tuple[Weakness, ...]
    without: tuple[tuple[Thing, str], ...]

    def sentences(self, *, name_lost: bool = False) -> tuple[str, ...]:
        """For people: what is proved first, then what is not, with what it would take.
        ``name_lost``: names mean something to the reader."""
        found = []
        if self.outlived:
            parts = [
                f"any {_ONE[thing] if count == 1 else f'{count} {thing}'}"
                for thing, count in self.outlived
            ]
            reasons = "".join(f"; {reason}" for _, reason in self.without)
            found.append(
                f"every shard outlives the loss of {_listed(parts, 'or')} (proved{reasons})"
            )
        groups: dict[tuple[object, ...], list[Weakness]] = {}
        with_a_node = {w.shard for w in self.weak if w.thing == "nodes" and w.replicas == 1}
        for weak in self.weak:
            if weak.thing != "nodes" and weak.shard in with_a_node:
                continue  # of course, and it takes the same
            key = (weak.thing, min(weak.replicas, weak.limit + 1), len(weak.lost))
            groups.setdefault((*key, weak.lost if name_lost else ()), []).append(weak)
        found += [_weak_text(group, name_lost) for group in groups.values()]
        return tuple(found)


def prove(
    standings: Sequence[Standing],
    survival: Survival,
    *,
    nodes: Iterable[Collection[str]] = (),
    cells: Iterable[str] = (),
    no_switches: str = "nothing is known of switches",
) -> Proof:
    """What the replicas that stand there outlive. ``nodes``: the switches above each node, also
    of those without replicas; with one of which they are not known, switches are not looked at.
    ``cells``: those without replicas too.

    Where there is but one cell, or a switch is above every node, nothing can be done about its
    loss: such things are not looked at. ``no_switches`` says why no switch is known, if so.
    """
    shards: dict[str, list[Standing]] = {}
    for standing in standings:
        shards.setdefault(standing.shard, []).append(standing)
    in_cells = {*cells, *(standing.cell for standing in standings)}
    above = [frozenset(switches) for switches in nodes]
    above_all = frozenset.intersection(*above) if above else frozenset[str]()
    switches = frozenset(name for s in standings for name in s.switches) - above_all
    if not all(above):
        switches = frozenset()
    without: list[tuple[Thing, str]] = []
    checks: list[tuple[Thing, int]] = [("nodes", survival.nodes)] if survival.nodes else []
    if survival.switches and switches:
        checks.append(("switches", survival.switches))
    elif survival.switches:
        without.append(("switches", "all are below one switch" if above_all else no_switches))
    if survival.cells and len(in_cells) > 1:
        checks.append(("cells", survival.cells))
    elif survival.cells:
        without.append(("cells", "there is one cell"))
    weak: list[Weakness] = []
    for thing, limit in checks:
        for shard, mine in shards.items():
            lost = fatal([_ends_with(s, thing, above_all) for s in mine], limit)
            if lost is not None:
                weak.append(
                    Weakness(
                        shard=shard, thing=thing, limit=limit, lost=lost, replicas=len(mine)
                    )
                )  # fmt: skip
    failed = {item.thing for item in weak}
    return Proof(
        outlived=tuple(check for check in checks if check[0] not in failed) if shards else (),
        weak=tuple(weak),
        without=tuple(without),
    )


def fatal(sets: Iterable[frozenset[str]], most: int) -> tuple[str, ...] | None:
    """A smallest choice of at most ``most`` names such that every set holds one of them; None if
    there is none. Exact: of each set one name has to be chosen, so all of them are tried."""
    unique = sorted(set(sets), key=lambda names: (len(names), sorted(names)))
    for size in range(most + 1):
        found = _hit(unique, size)
        if found is not None:
            return tuple(sorted(found))
    return None


def _hit(sets: Sequence[frozenset[str]], most: int) -> tuple[str, ...] | None:
    if not sets:
        return ()
    if most == 0:
        return None
    for name in sorted(sets[0]):
        rest = _hit([names for names in sets if name not in names], most - 1)
        if rest is not None:
            return (name, *rest)
    return None


def _ends_with(standing: Standing, thing: Thing, above_all: frozenset[str]) -> frozenset[str]:
    if thing == "nodes":
        return standing.nodes
    if thing == "cells":
        return frozenset({standing.cell})
    return standing.switches - above_all


def _many(thing: Thing, count: int) -> str:
    return f"1 {_ONE[thing]}" if count == 1 else f"{count} {thing}"


def _listed(parts: Sequence[str], word: str) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}"


def _weak_text(group: Sequence[Weakness], name_lost: bool) -> str:
    first, names = group[0], [weak.shard for weak in group]
    more = len(names) - MAX_NAMES
    shown = names[:MAX_NAMES] + ([f"{more} more"] if more > 0 else [])
    lost = _many(first.thing, len(first.lost))
    named = f" ({_listed(first.lost, 'and')})" if name_lost else ""
    needed = first.limit + 1
    begin = f"{_listed(shown, 'and')} may be lost with {lost}{named}"
    replicas = {weak.replicas for weak in group}
    count = f"{first.replicas} replica{'' if first.replicas == 1 else 's'}"
    if first.replicas < needed:
        has = "it has" if len(group) == 1 else "each has"
        goal = f"any {first.limit} {first.thing}" if first.limit > 1 else f"any {lost[2:]}"
        return f"{begin}: {has} {count}, {needed} are needed to outlive {goal}"
    whose = f"its {count}" if len(replicas) == len(group) == 1 else "their replicas"
    return f"{begin}: {whose} depend on {lost}, {needed} are needed"
