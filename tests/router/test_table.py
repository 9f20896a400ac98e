"""What a new list of replicas does to those that are known."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from exaslurm.core.canary import Canary
from exaslurm.registry.replica import Replica
from exaslurm.router.table import Group, Table, Target

REPLICA = Replica(
    id="r0",
    cell="engines",
    model="chat",
    served_names=("chat",),
    url="http://127.0.0.1:8000",
    node="n0",
    ready=True,
    key="first",
)


def test_a_new_key_is_shown_to_the_engine() -> None:
    table = Table()
    table.update([REPLICA])
    before = table.target("r0")
    table.update([dataclasses.replace(REPLICA, state="ready")])
    assert table.target("r0") is before
    table.update([dataclasses.replace(REPLICA, key="second")])
    after = table.target("r0")
    assert after is not None
    assert b"second" in after.endpoint.after_url


@pytest.mark.parametrize("url", ["http://h:port", "ftp://h:1", "http://[::1", "nothing"])
def test_an_address_that_is_none_costs_no_other_replica(url: str) -> None:
    table = Table()
    bad = dataclasses.replace(REPLICA, id="bad", url=url)
    table.update([bad, REPLICA])
    assert [target.ident for target in table.targets] == ["r0"]
    group = table.group("chat")
    assert group is not None
    assert picked(table, group, 1.0) == "r0"


def two_versions() -> tuple[Table, Group]:
    """One replica of each, and everything for the new one."""
    canary = Canary(weights={"chat": {"old": 0.0, "new": 100.0}})
    table = Table(canary=canary, by_prefix=False)
    table.update(
        [
            dataclasses.replace(REPLICA, id=name, url=f"http://127.0.0.1:{port}", version=name)
            for port, name in ((8001, "old"), (8002, "new"))
        ]
    )
    group = table.group("chat")
    assert group is not None
    return table, group


def picked(table: Table, group: Group, now_s: float, tried: tuple[Target, ...] = ()) -> str:
    found = table.pick(group, now_s, tried)
    assert found is not None
    assert found[1].version == found[0].replica.version
    return found[0].ident


def test_a_version_that_failed_is_left_for_another_and_probed() -> None:
    table, group = two_versions()
    new = table.target("new")
    assert new is not None
    assert picked(table, group, 1.0) == "new"
    table.failed(new, 1.0, fatal=True)
    assert [picked(table, group, 1.0) for _ in range(10)] == ["old"] * 10
    # When its time has come, one request asks whether it is back.
    later_s = new.breaker.retry_at_s + 0.01
    assert picked(table, group, later_s) == "new"
    assert picked(table, group, later_s) == "old"
    table.succeeded(new)
    assert picked(table, group, later_s) == "new"


def test_where_all_versions_failed_any_is_better_than_none() -> None:
    table, group = two_versions()
    for name in ("old", "new"):
        target = table.target(name)
        assert target is not None
        table.failed(target, 1.0, fatal=True)
    assert picked(table, group, 1.0) == "new"
    new = table.target("new")
    assert new is not None
    assert picked(table, group, 1.0, (new,)) == "old"


def test_a_version_without_a_share_is_used_where_nothing_else_is_left() -> None:
    table, group = two_versions()
    new = table.target("new")
    assert new is not None
    assert picked(table, group, 1.0, (new,)) == "old"


def one_ejected() -> tuple[Table, Replica, Replica]:
    """Two replicas, ``bad`` and ``good``, the first of which is left alone."""
    table = Table(by_prefix=False)
    bad = dataclasses.replace(REPLICA, id="bad", url="http://127.0.0.1:8001")
    good = dataclasses.replace(REPLICA, id="good", url="http://127.0.0.1:8002")
    table.update([bad, good])
    target = table.target("bad")
    assert target is not None
    table.failed(target, 1.0, fatal=True)
    return table, bad, good


def asked_of(table: Table, name: str, begin_s: float) -> list[str]:
    """The addresses that some requests go to, a second apart; each is answered."""
    addresses = []
    for second in range(40):
        group = table.group(name)
        assert group is not None
        found = table.pick(group, begin_s + second, ())
        assert found is not None
        table.succeeded(found[0])
        addresses.append(found[0].replica.url)
    return addresses


def test_one_that_has_left_while_it_was_ejected_is_not_probed() -> None:
    table, bad, good = one_ejected()
    table.update([good])
    assert set(asked_of(table, "chat", 100.0)) == {good.url}
    # Nor is the address that it had before.
    table, bad, good = one_ejected()
    moved = dataclasses.replace(bad, url="http://127.0.0.1:8003")
    table.update([moved, good])
    assert set(asked_of(table, "chat", 100.0)) == {good.url, moved.url}


@pytest.mark.parametrize("rest", [{"sleeping": True}, {"draining": True}])
def test_one_that_took_no_requests_when_it_was_due_is_probed_later(rest: dict[str, Any]) -> None:
    table, bad, good = one_ejected()
    table.update([dataclasses.replace(bad, **rest), good])
    assert set(asked_of(table, "chat", 100.0)) == {good.url}
    table.update([bad, good])
    assert set(asked_of(table, "chat", 200.0)) == {good.url, bad.url}


def test_an_ejected_one_is_probed_by_another_name_too() -> None:
    table, bad, good = one_ejected()
    table.update([dataclasses.replace(one, served_names=("chat-2",)) for one in (bad, good)])
    assert set(asked_of(table, "chat-2", 100.0)) == {good.url, bad.url}


LONG = 20_000


def ejected(*lengths: int) -> tuple[Table, Group]:
    """Replicas with contexts of these lengths, all left alone, and one more that is well."""
    table = Table(by_prefix=False)
    table.update(
        [
            dataclasses.replace(
                REPLICA, id=f"r{n}", url=f"http://127.0.0.1:{8001 + n}", max_model_len=length
            )
            for n, length in enumerate((*lengths, 32_768))
        ]
    )
    group = table.group("chat")
    assert group is not None
    for n in range(len(lengths)):
        target = table.target(f"r{n}")
        assert target is not None
        table.failed(target, 1.0 + n / 1000, fatal=True)
    return table, group


def pick_long(table: Table, group: Group, now_s: float, tried: tuple[Target, ...] = ()) -> str:
    found = table.pick(group, now_s, tried, tokens=LONG)
    assert found is not None
    return found[0].ident


def test_one_that_does_not_fit_is_no_reason_to_leave_alone_the_next() -> None:
    table, group = ejected(2048, 32_768)
    assert pick_long(table, group, 10.0) == "r1"
    # It waits for a request that fits.
    assert picked(table, group, 10.0) == "r0"


def test_nor_is_one_that_has_been_tried() -> None:
    table, group = ejected(32_768, 32_768)
    first = table.target("r0")
    assert first is not None
    assert picked(table, group, 10.0, (first,)) == "r1"
    assert picked(table, group, 10.0) == "r0"


class Untried(tuple[Target, ...]):
    """No replica has been tried; how often somebody asked."""

    looks = 0

    def __contains__(self, target: object) -> bool:
        self.looks += 1
        return False


def test_hundreds_that_do_not_fit_cost_each_request_a_few_looks() -> None:
    table, group = ejected(*[2048] * 300, 32_768)
    asked: list[str] = []
    while "r300" not in asked and len(asked) < 100:
        tried = Untried()
        asked.append(pick_long(table, group, 10.0, tried))
        assert 0 < tried.looks < 20
    assert asked[-1] == "r300"


@pytest.mark.parametrize("names", [("chat",), ("chat", "chat:base")])
def test_a_probe_that_takes_long_keeps_no_replica_out(names: tuple[str, ...]) -> None:
    table, bad, good = one_ejected()
    table.update([dataclasses.replace(one, served_names=names) for one in (bad, good)])
    groups = [group for name in names if (group := table.group(name)) is not None]
    group, other = groups[0], groups[-1]
    assert picked(table, group, 10.0) == "bad"
    assert {picked(table, each, 14.9) for each in groups for _ in range(9)} == {"good"}
    assert picked(table, other, 15.1) == "bad"
    assert {picked(table, each, 15.2) for each in groups for _ in range(9)} == {"good"}
    target = table.target("bad")
    assert target is not None
    table.begins_well(target)
    assert {picked(table, each, 15.2) for each in groups for _ in range(99)} == {"good", "bad"}


def test_one_that_is_lost_or_back_costs_no_look_at_every_replica() -> None:
    table = Table(by_prefix=False)
    table.update([dataclasses.replace(REPLICA, id=f"r{n}") for n in range(4)])
    group = table.group("chat")
    lost = table.target("r1")
    assert group is not None
    assert lost is not None
    group.lanes[0].members.clear()  # whoever looks again would find none
    table.failed(lost, 1.0, fatal=True)
    assert {target.ident for target in group.closed} == {"r0", "r2", "r3"}
    assert {picked(table, group, 1.0) for _ in range(99)} == {"r0", "r2", "r3"}
    table.succeeded(lost)
    assert {picked(table, group, 1.0) for _ in range(99)} == {"r0", "r1", "r2", "r3"}


def test_what_is_said_of_one_that_has_left_changes_nothing() -> None:
    table, bad, good = one_ejected()
    gone = table.target("bad")
    assert gone is not None
    table.update([good])
    table.succeeded(gone)
    table.failed(gone, 2.0, fatal=True)
    assert set(asked_of(table, "chat", 100.0)) == {good.url}
    # Nor is it what the one says that came in its place.
    table.update([bad, good])
    table.failed(gone, 100.0, fatal=True)
    assert set(asked_of(table, "chat", 200.0)) == {good.url, bad.url}


def test_whatever_happens_the_closed_ones_are_those_whose_breaker_is() -> None:
    rng = random.Random(7)
    replicas = [
        dataclasses.replace(REPLICA, id=f"r{n}", served_names=names)
        for n, names in enumerate([("a",), ("b",), ("a", "b")] * 6)
    ]
    table = Table(rng=rng)
    table.update(replicas)
    now_s = 0.0
    told: list[str] = []
    for _ in range(4000):
        now_s += rng.random()
        target = rng.choice(list(table.targets))
        match rng.randrange(13):
            case 12:
                table.failed(target, now_s)
            case 0 | 1 | 2:
                table.failed(target, now_s, fatal=True)
            case 3:
                table.succeeded(target)
            case 4:
                table.begins_well(target)
            case 5 | 6:
                table.told_nothing(target, now_s)
            case 7:
                draining = [rng.random() < 0.1 for _ in replicas]
                known = zip(replicas, draining, strict=True)
                pid = rng.choice([1, 1, 1, 2])  # sometimes all are restarted
                table.update([dataclasses.replace(one, draining=it, pid=pid) for one, it in known])
            case _:
                group = table.group(rng.choice("ab"))
                assert group is not None
                was = {one.ident: one.breaker.retry_at_s for one in group.usable}
                found = table.pick(group, now_s, (), keys=[rng.getrandbits(63)])
                if found is not None and found[0].breaker.state == "probing":
                    told.append(found[0].ident)
                    assert was[found[0].ident] <= now_s or not group.closed
        for one in table.targets:
            assert one.closed == (one.replica.takes_requests and one.breaker.closed)
            assert one.clean == one.breaker.clean
        for each in table.groups:
            closed = {one for one in each.usable if one.breaker.closed}
            assert len(each.closed) == len(closed)
            assert set(each.closed) == closed
            for lane in each.lanes:  # none is forgotten, and what was said before is
                queued = lane._ejected.heap
                assert {entry[2] for entry in queued} >= set(lane.usable) - closed
                assert len(queued) <= 2 * len(lane.usable) + 9
    assert set(told) == {one.id for one in replicas}


def test_who_names_no_model_costs_no_look_at_every_replica() -> None:
    table = Table(by_prefix=False)
    names = tuple(f"adapter-{n}" for n in range(50))
    table.update([dataclasses.replace(REPLICA, id=f"r{n}", served_names=names) for n in range(100)])
    first = table.group("adapter-0")
    assert first is not None
    first.lanes.clear()  # whoever looks again would find them to differ
    assert table.only_group() is first
    table.update([REPLICA, dataclasses.replace(REPLICA, id="r1", served_names=("other",))])
    assert table.only_group() is None
    table.update([REPLICA])
    assert table.only_group() is table.group("chat")
    table.update([])
    assert table.only_group() is None
