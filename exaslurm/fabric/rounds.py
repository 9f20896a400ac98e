"""Who measures with whom and when: all pairs of n nodes in n - 1 rounds (n, if n is odd).

The round-robin tournament of sports leagues (circle method): in each round every node has at most
one partner, so pairs do not disturb each other at their own ports, and the number of rounds grows
with the nodes, not with the pairs.
"""

from __future__ import annotations


def partners(nodes: int, rank: int) -> tuple[int | None, ...]:
    """The partner of ``rank`` in each round, None where it sits out.

    Of all nodes but the last one, those meet in round r whose sum is r modulo their number, which
    is odd; who would meet itself meets the last one, which is nobody if ``nodes`` is odd.
    """
    if not 0 <= rank < nodes:
        raise ValueError(f"rank {rank} is none of {nodes} nodes")
    last = nodes - 1 + nodes % 2
    found: list[int | None] = []
    for number in range(last if nodes > 1 else 0):
        if rank == last:
            # The node that would meet itself: the half of the round's number, modulo.
            partner = number * (last + 1) // 2 % last
        else:
            partner = (number - rank) % last
            if partner == rank:
                partner = last
        found.append(partner if partner < nodes else None)
    return tuple(found)
