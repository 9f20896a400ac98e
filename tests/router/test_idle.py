"""Idle connections to an engine: the warmest is used first, the coldest are closed."""

from __future__ import annotations

from typing import Any

from exaslurm.router.heads import Memory
from exaslurm.router.upstream import Connection, Endpoint, drop_idle


class Wire:
    """A transport that remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def idle(endpoint: Endpoint) -> list[Connection]:
    """The idle ones, the warmest first."""
    found = []
    one = endpoint.idle
    while one is not None:
        found.append(one)
        one = one.colder
    return found


def connections(endpoint: Endpoint, count: int) -> list[Any]:
    """Connections that became idle one after the other, at 0, 1, 2, ... seconds."""
    made = [Connection(endpoint, 2000, Memory()) for _ in range(count)]
    for number, one in enumerate(made):
        one.connection_made(Wire())
        one.keep = True
        one.give_back(float(number))
    return made


def test_the_warmest_comes_first() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", None)
    made = connections(endpoint, 3)
    assert idle(endpoint) == made[::-1]


def test_those_idle_for_long_are_closed() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", None)
    made = connections(endpoint, 5)
    drop_idle(endpoint, 2.0)
    assert idle(endpoint) == [made[4], made[3], made[2]]
    assert [one.transport.closed for one in made] == [True, True, False, False, False]
    drop_idle(endpoint, 2.0)
    assert idle(endpoint) == [made[4], made[3], made[2]]
    drop_idle(endpoint, float("inf"))
    assert idle(endpoint) == []
    assert all(one.transport.closed for one in made)


def test_one_that_is_lost_leaves_the_others() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", None)
    made = connections(endpoint, 4)
    for lost, rest in ((1, [3, 2, 0]), (3, [2, 0]), (0, [2]), (2, [])):
        made[lost].connection_lost(None)
        assert idle(endpoint) == [made[number] for number in rest]
    assert endpoint.open == 0


def test_one_that_was_closed_before_is_none_of_them() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", None)
    made = connections(endpoint, 3)
    drop_idle(endpoint, 1.0)
    made[0].connection_lost(None)
    assert idle(endpoint) == [made[2], made[1]]
