"""What comparing nodes says."""

from __future__ import annotations

from collections.abc import Mapping

from exaslurm.core.checks import Check, NodeChecks, PeerMeasure, failed
from exaslurm.core.uniform import compare


def node(host: str, *peers: PeerMeasure, **alike: str) -> NodeChecks:
    values = {f"uniform.{name}": value for name, value in alike.items()}
    return NodeChecks(host=host, checks=(), alike=values, peers=peers)


def to(peer: str, *, rtt_us: float = 50.0, ahead_s: float = 0.0, error: str = "") -> PeerMeasure:
    if error:
        return PeerMeasure(peer=peer, address=f"{peer}:1", error=error)
    return PeerMeasure(peer=peer, address=f"{peer}:1", rtt_us=rtt_us, ahead_s=ahead_s)


def one(found: Mapping[str, tuple[Check, ...]], host: str, ident: str) -> Check:
    (check,) = [check for check in found[host] if check.id == ident]
    return check


def outcomes(found: Mapping[str, tuple[Check, ...]], ident: str) -> dict[str, str]:
    return {
        host: check.outcome
        for host, checks in found.items()
        for check in checks
        if check.id == ident
    }


def test_the_few_are_at_fault() -> None:
    found = compare([node("a", mtu="9000"), node("b", mtu="1500"), node("c", mtu="9000")])
    assert outcomes(found, "uniform.mtu") == {"a": "pass", "b": "fail", "c": "pass"}
    assert one(found, "b", "uniform.mtu").value == "1500; 9000 on 2 other nodes"


def test_without_a_majority_all_differ() -> None:
    found = compare([node("a", mtu="9000"), node("b", mtu="1500")])
    assert outcomes(found, "uniform.mtu") == {"a": "fail", "b": "fail"}


def test_a_value_that_is_missing_differs() -> None:
    found = compare([node("a", gpu_driver="nvidia 570"), node("b", gpu_driver=""),
                     node("c", gpu_driver="nvidia 570")])  # fmt: skip
    assert one(found, "b", "uniform.gpu_driver").value == "none; nvidia 570 on 2 other nodes"


def test_what_no_node_has_is_not_compared() -> None:
    assert compare([node("a", gpu_model=""), node("b", gpu_model="")]) == {"a": (), "b": ()}


def test_a_kernel_may_differ() -> None:
    found = compare([node("a", kernel="5.14"), node("b", kernel="5.15"), node("c", kernel="5.14")])
    assert outcomes(found, "uniform.kernel") == {"a": "pass", "b": "warn", "c": "pass"}


def test_one_node_is_compared_with_nothing() -> None:
    assert compare([node("a", mtu="9000")]) == {"a": ()}


def ring(hosts: str, **bad: PeerMeasure) -> list[NodeChecks]:
    """Each host measures to the next two; ``bad`` replaces single measures (``ab``: a to b)."""
    return [
        node(
            host,
            *(
                bad.get(host + peer, to(peer))
                for peer in (hosts[(i + step) % len(hosts)] for step in (1, 2))
            ),
        )
        for i, host in enumerate(hosts)
    ]


def test_all_is_well() -> None:
    found = compare(ring("abcd"))
    for ident in ("net.peers", "net.latency", "clock.skew"):
        assert set(outcomes(found, ident).values()) == {"pass"}


def test_a_shut_door_is_the_fault_of_its_house() -> None:
    found = compare(ring("abcd", ac=to("c", error="no answer"), bc=to("c", error="no answer")))
    assert outcomes(found, "net.peers") == {"a": "pass", "b": "pass", "c": "fail", "d": "pass"}
    assert one(found, "c", "net.peers").value == "not reached from a, b: c:1: no answer"


def test_who_cannot_get_out_is_at_fault() -> None:
    found = compare(ring("abcd", ab=to("b", error="no route"), ac=to("c", error="no route")))
    assert outcomes(found, "net.peers") == {"a": "fail", "b": "pass", "c": "pass", "d": "pass"}


def test_one_way_between_two_is_a_warning() -> None:
    found = compare(ring("abcd", ab=to("b", error="no route")))
    assert outcomes(found, "net.peers") == {"a": "warn", "b": "pass", "c": "pass", "d": "pass"}


def test_a_node_that_gave_no_answer_is_not_judged_by_its_network() -> None:
    nodes = ring("abcd", ac=to("c", error="it did not come"), bc=to("c", error="it did not come"))
    silent = NodeChecks(host="c", checks=(failed("node.answer", "nothing", "look"),))
    found = compare([node if node.host != "c" else silent for node in nodes])
    assert outcomes(found, "net.peers") == {"a": "pass", "b": "pass", "d": "pass"}


def test_a_slow_link_is_found_at_its_own_end() -> None:
    slow = {pair: to(pair[1], rtt_us=20_000) for pair in ("ac", "bc", "cd", "ca")}
    found = compare(ring("abcd", **slow))
    assert outcomes(found, "net.latency") == {"a": "pass", "b": "pass", "c": "fail", "d": "pass"}
    assert "20000 us" in one(found, "c", "net.latency").value


def test_the_clock_that_differs_is_the_one_of_the_few() -> None:
    late = {"ac": to("c", ahead_s=-90), "bc": to("c", ahead_s=-90),
            "cd": to("d", ahead_s=90), "ca": to("a", ahead_s=90)}  # fmt: skip
    found = compare(ring("abcd", **late))
    assert outcomes(found, "clock.skew") == {"a": "pass", "b": "pass", "c": "fail", "d": "pass"}
    assert one(found, "c", "clock.skew").value == "90.0 s behind the median of 4 nodes"
