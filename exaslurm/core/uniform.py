"""What is seen only when nodes are compared: differences, clocks, and who cannot reach whom. Pure.

A difference is the finding of the few: where most nodes agree, those that do not are at fault.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from exaslurm.core.checks import Check, NodeChecks, PeerMeasure, failed, passed, skipped, warned

# What should be equal: whether a difference is a failure, and what to do about it.
ALIKE: Mapping[str, tuple[bool, str]] = {
    "uniform.gpu_driver": (
        True,
        "collectives between different drivers hang or fail: drain the node until it is updated",
    ),
    "uniform.gpu_model": (
        True,
        "replicas would differ in speed and memory: keep to one kind of node (`constraint`)",
    ),
    "uniform.fabric": (
        True,
        "a port is down or slower than elsewhere: see ib.state and ib.rate of the node, drain it",
    ),
    "uniform.mtu": (
        True,
        "large packets between nodes get lost: set it to that of the others (ip link set)",
    ),
    "uniform.python": (True, "point `python` in the site config at the same environment on all"),
    "uniform.exaslurm": (True, "install the same exaslurm on all nodes"),
    "uniform.vllm": (True, "install the same vLLM on all nodes"),
    "uniform.ray": (True, "Ray joins no cluster of another version: install the same on all"),
    "uniform.cpus": (False, "cores are offline, or another kind of node: check SMT and the BIOS"),
    "uniform.kernel": (
        False,
        "usual while a site updates its nodes; else a node missed the update",
    ),
}

SKEWED_S, FAR_SKEWED_S = 0.25, 2.0
SLOW_US, STUCK_US, TIMES_OTHERS = 500.0, 5000.0, 5.0
_CLOCK_REMEDY = (
    "audit records and short-lived tokens carry times: mend NTP on the node (chronyc tracking)"
)
_PEER_REMEDY = (
    "a firewall or a wrong route: open the site's port range (`ports`) between nodes, or "
    "name the right `interface`"
)
_LATENCY_REMEDY = "a bad cable, a duplex mismatch or a busy link (ethtool -S): drain the node"


def compare(nodes: Sequence[NodeChecks]) -> dict[str, tuple[Check, ...]]:
    """What comparing the nodes says of each; nothing where there are fewer than two."""
    if len(nodes) < 2:
        return {node.host: () for node in nodes}
    found: dict[str, list[Check]] = {node.host: [] for node in nodes}
    parts = [_alike(ident, nodes) for ident in ALIKE]
    if any(node.peers for node in nodes):
        parts += [_reach(nodes), _latency(nodes), _clocks(nodes)]
    for part in parts:
        for host, check in part.items():
            found[host].append(check)
    return {host: tuple(checks) for host, checks in found.items()}


def _alike(ident: str, nodes: Sequence[NodeChecks]) -> dict[str, Check]:
    values = {node.host: node.alike[ident] for node in nodes if ident in node.alike}
    if len(values) < 2 or not any(values.values()):
        return {}
    counts = Counter(values.values()).most_common()
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    usual = counts[0][0]
    found = {}
    for host, value in values.items():
        if len(counts) == 1 or (value == usual and not tied):
            found[host] = passed(ident, value)
            continue
        others = "; ".join(
            f"{other or 'none'} on {count}" for other, count in counts if other != value
        )
        is_failure, remedy = ALIKE[ident]
        text = f"{value or 'none'}; {others} other node{'s' if len(values) > 2 else ''}"
        found[host] = (failed if is_failure else warned)(ident, text, remedy)
    return found


def _pairs(nodes: Sequence[NodeChecks]) -> list[tuple[str, PeerMeasure]]:
    # Of one that gave no answer, nothing is known of its network either.
    hosts = {node.host for node in nodes if all(c.id != "node.answer" for c in node.checks)}
    return [(node.host, peer) for node in nodes for peer in node.peers if peer.peer in hosts]


def _reach(nodes: Sequence[NodeChecks]) -> dict[str, Check]:
    """A node that nobody reaches has its door shut; one that reaches nobody, though others are
    reached, cannot get out; what is left is between two nodes."""
    ident = "net.peers"
    pairs = _pairs(nodes)
    shut, locked = set(), set()
    for node in nodes:
        errors = [peer.error for _, peer in pairs if peer.peer == node.host]
        if errors and all(errors):
            shut.add(node.host)
    for node in nodes:
        asked = [peer for host, peer in pairs if host == node.host]
        if asked and all(p.error for p in asked) and any(p.peer not in shut for p in asked):
            locked.add(node.host)
    shut -= {host for host in shut if all(h in locked for h, p in pairs if p.peer == host)}
    found = {}
    for node in nodes:
        outward = [peer for host, peer in pairs if host == node.host]
        inward = [(host, peer) for host, peer in pairs if peer.peer == node.host]
        strange = [p for p in outward if p.error and p.peer not in shut and node.host not in locked]
        if node.host in shut:
            froms = ", ".join(host for host, _ in inward)
            value = f"not reached from {froms}: {inward[0][1].address}: {inward[0][1].error}"
            found[node.host] = failed(ident, value, _PEER_REMEDY)
        elif node.host in locked:
            tos = ", ".join(peer.peer for peer in outward)
            value = f"reaches none of {tos}: {outward[0].address}: {outward[0].error}"
            found[node.host] = failed(ident, value, _PEER_REMEDY)
        elif strange:
            value = "; ".join(f"{p.peer} ({p.address}): {p.error}" for p in strange)
            found[node.host] = warned(ident, value, _PEER_REMEDY)
        elif outward or inward:
            reached = [peer.peer for peer in outward if not peer.error]
            found[node.host] = passed(ident, f"reaches {', '.join(reached) or 'nobody asked'}")
    return found


def _latency(nodes: Sequence[NodeChecks]) -> dict[str, Check]:
    """The best round trip that a node has with any other: a slow link of its own is in all."""
    ident = "net.latency"
    best: dict[str, tuple[float, str]] = {}
    for host, peer in _pairs(nodes):
        if peer.rtt_us is not None:
            for one, other in ((host, peer.peer), (peer.peer, host)):
                best[one] = min(best.get(one, (peer.rtt_us, other)), (peer.rtt_us, other))
    if not best:
        return {}
    usual = statistics.median(rtt for rtt, _ in best.values())
    found = {}
    for node in nodes:
        if node.host not in best:
            found[node.host] = skipped(ident, "no other node was reached")
            continue
        rtt_us, other = best[node.host]
        value = f"{rtt_us:.0f} us round trip to {other}"
        if rtt_us > max(SLOW_US, TIMES_OTHERS * usual) or rtt_us > STUCK_US:
            value += f"; usual here: {usual:.0f} us"
            bad = failed if rtt_us > STUCK_US else warned
            found[node.host] = bad(ident, value, _LATENCY_REMEDY)
        else:
            found[node.host] = passed(ident, value)
    return found


def _clocks(nodes: Sequence[NodeChecks]) -> dict[str, Check]:
    """Clocks by the differences that neighbours measured, against the median of all."""
    ident = "clock.skew"
    edges: dict[str, list[tuple[str, float]]] = {node.host: [] for node in nodes}
    for host, peer in _pairs(nodes):
        if peer.ahead_s is not None:
            edges[host].append((peer.peer, peer.ahead_s))
            edges[peer.peer].append((host, -peer.ahead_s))
    found: dict[str, Check] = {}
    for start in edges:
        if start in found:
            continue
        ahead = _spread_from(start, edges)
        middle = statistics.median(ahead.values())
        for host, seconds in ahead.items():
            found[host] = _skew(ident, seconds - middle, len(ahead))
    return found


def _spread_from(start: str, edges: Mapping[str, Sequence[tuple[str, float]]]) -> dict[str, float]:
    """Clocks of all hosts that are connected with ``start``, as seconds ahead of it."""
    ahead = {start: 0.0}
    todo = deque([start])
    while todo:
        host = todo.popleft()
        for other, seconds in edges[host]:
            if other not in ahead:
                ahead[other] = ahead[host] + seconds
                todo.append(other)
    return ahead


def _skew(ident: str, seconds: float, count: int) -> Check:
    if count < 2:
        return skipped(ident, "no other clock was seen")
    word = "ahead of" if seconds >= 0 else "behind"
    value = f"{abs(seconds) * 1000:.1f} ms {word} the median of {count} nodes"
    if abs(seconds) > SKEWED_S:
        value = f"{abs(seconds):.1f} s {word} the median of {count} nodes"
        return (failed if abs(seconds) > FAR_SKEWED_S else warned)(ident, value, _CLOCK_REMEDY)
    return passed(ident, value)
