"""Interface, host names, ports."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from exaslurm.core import ports as offsets
from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.preflight.host import Host

LOOPBACK = "loopback"
SLOW_LOOKUP_S, STUCK_LOOKUP_S = 0.5, 2.0
# Below it IPv6 does not work, and nothing of our time is set up like that on purpose.
MIN_MTU = 1280


def interfaces(host: Host) -> list[str]:
    """Names of the network interfaces, the loopback one left out."""
    directory = host.sys / "class/net"
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return [name for name in names if name not in ("lo", "bonding_masters")]


def check_interface(host: Host, pattern: str | None) -> Check:
    """The interface that the site names is there and up."""
    ident = "net.interface"
    if pattern is None:
        return passed(ident, "the address of the host's own name")
    if pattern == LOOPBACK:
        return passed(ident, "loopback")
    here = interfaces(host)
    found = fnmatch.filter(here, pattern)
    remedy = "set `interface` in the site config to one that all nodes have, or mend the node's"
    if not found:
        return failed(ident, f"no {pattern} here ({', '.join(here) or 'none at all'})", remedy)
    # "unknown" is what drivers say that do not tell, IPoIB's and tunnels' among them.
    down = [name for name in found if _word(host, name, "operstate") not in ("up", "unknown")]
    if down == found:
        return failed(ident, f"{', '.join(found)}: {_word(host, found[0], 'operstate')}", remedy)
    return passed(ident, ", ".join(name for name in found if name not in down))


def mtu_of(host: Host, pattern: str | None) -> dict[str, int]:
    """MTU in bytes of each interface that the pattern names (all, where there is none)."""
    names = interfaces(host)
    if pattern == LOOPBACK:
        return {}
    if pattern is not None:
        names = fnmatch.filter(names, pattern)
    found = {name: _word(host, name, "mtu") for name in names}
    return {name: int(text) for name, text in found.items() if text.isdigit()}


def check_mtu(host: Host, pattern: str | None) -> Check:
    """Packets of a usual size go through; whether all nodes agree is seen when all are compared."""
    ident = "net.mtu"
    found = mtu_of(host, pattern)
    if not found:
        return skipped(ident, "no interface to look at")
    value = ", ".join(f"{name} {mtu}" for name, mtu in found.items())
    if min(found.values()) < MIN_MTU:
        return failed(ident, value, "set the MTU that the other nodes have (ip link set ... mtu)")
    return passed(ident, value)


def _word(host: Host, interface: str, name: str) -> str:
    return host.read(f"/sys/class/net/{interface}/{name}") or "?"


def check_names(host: Host, names: Sequence[str]) -> Check:
    """Host names resolve, and fast: each look-up is paid for many times during bring-up."""
    ident = "net.names"
    if host.recorded:
        return skipped(ident, "a recorded tree does not tell")
    slowest_s, slowest = 0.0, ""
    for name in names:
        begin = host.timer()
        try:
            host.lookup(name)
        except OSError as error:
            return failed(
                ident,
                f"{name} does not resolve ({error.strerror or error}; "
                f"{host.timer() - begin:.1f} s)",
                "nodes must find each other by name: mend DNS or /etc/hosts, or set `interface` "
                "or `host_suffix` in the site config",
            )
        took_s = host.timer() - begin
        if took_s >= slowest_s:
            slowest_s, slowest = took_s, name
    value = f"{len(names)} names, slowest {slowest_s * 1000:.0f} ms ({slowest})"
    remedy = "a name server does not answer: mend /etc/resolv.conf, or cache names (nscd, sssd)"
    if slowest_s > STUCK_LOOKUP_S:
        return failed(ident, value, remedy)
    if slowest_s > SLOW_LOOKUP_S:
        return warned(ident, value, remedy)
    return passed(ident, value)


def check_port_range(host: Host, first: int, last: int) -> Check:
    """The site's ports lie outside of those that the kernel gives to outgoing connections."""
    ident = "ports.range"
    text = host.read("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999"
    low, high = (int(word) for word in text.split()[:2])
    value = f"{first}-{last}; the kernel hands out {low}-{high}"
    if first <= high and last >= low:
        return warned(
            ident,
            value,
            "outgoing connections may take our ports: choose `ports` below them in the site "
            "config, or reserve them (net.ipv4.ip_local_reserved_ports)",
        )
    return passed(ident, value)


def check_ports_free(host: Host, first: int, last: int, block: int) -> Check:
    """A whole block is there for a cell; ports in use are counted."""
    ident = "ports.free"
    if block == 0:
        return skipped(ident, "the cell that runs here has its block")
    used = sorted(port for port in listening(host) if first <= port <= last)
    control = range(offsets.CONTROLLER, offsets.AGENT + 1)
    bases = range(first, max(first + 1, last - block + 2), block)
    free = [base for base in bases if not any(base + offset in used for offset in control)]
    shown = ", ".join(map(str, used[:6])) + (" ..." if len(used) > 6 else "")
    value = f"{len(free)} of {len(bases)} blocks free" + (f"; in use: {shown}" if used else "")
    remedy = "end what listens there (ss -ltnp), or widen `ports` in the site config"
    if not free:
        return failed(ident, value, remedy)
    if 2 * len(free) < len(bases):
        return warned(ident, value, remedy)
    return passed(ident, value)


def listening(host: Host) -> set[int]:
    """Local TCP ports in state LISTEN (0A)."""
    return set(_listening(host))


def _listening(host: Host) -> Iterator[int]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.read(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A":
                yield int(fields[1].rsplit(":", 1)[1], 16)
