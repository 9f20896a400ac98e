"""Transport and even use, each against all possibilities."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.bind.flow import transport
from exaslurm.bind.ports import evenly

amounts = st.dictionaries(st.sampled_from([None, 0, 1, 2]), st.integers(0, 3), max_size=3)


@settings(deadline=None, max_examples=200)
@given(wanted=amounts, there=amounts, data=st.data())
def test_no_transport_is_cheaper(
    wanted: dict[int | None, int], there: dict[int | None, int], data: st.DataObject
) -> None:
    """Any table of distances, also one-sided and without the way over a third being longer."""
    table = {
        (a, b): 0 if a == b else data.draw(st.integers(0, 9))
        for a in (None, 0, 1, 2)
        for b in (None, 0, 1, 2)
    }
    found = transport(wanted, there, lambda a, b: table[a, b])
    units = [place for place, amount in wanted.items() for _ in range(amount)]
    slots = [place for place, amount in there.items() for _ in range(amount)]
    if len(units) > len(slots):
        assert found is None
        return
    assert found is not None
    price, flows = found
    assert price == sum(table[pair] * amount for pair, amount in flows.items())
    sent, taken = Counter[int | None](), Counter[int | None]()
    for (source, sink), amount in flows.items():
        assert amount > 0
        sent[source] += amount
        taken[sink] += amount
    assert sent == Counter(units)
    assert taken <= Counter(slots)
    if len(slots) <= 6:
        assert price == min(
            sum(table[pair] for pair in zip(units, chosen, strict=True))
            for chosen in itertools.permutations(slots, len(units))
        )


@settings(deadline=None, max_examples=200)
@given(
    choices=st.lists(st.lists(st.sampled_from("abcd"), unique=True, max_size=3), max_size=5),
    use=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4)),
)
def test_no_choice_of_ports_is_more_even(choices: list[list[str]], use: dict[str, int]) -> None:
    def squares(chosen: tuple[str, ...]) -> int:
        return sum(count * count for count in (Counter(use) + Counter(chosen)).values())

    found = evenly(choices, use)
    assert all(
        name in options if options else name is None
        for name, options in zip(found, choices, strict=True)
    )
    best = min(map(squares, itertools.product(*(options for options in choices if options))))
    assert squares(tuple(name for name in found if name is not None)) == best
