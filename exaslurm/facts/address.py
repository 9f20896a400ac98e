"""The address that the other nodes of the cell shall use for this one."""

from __future__ import annotations

import fcntl
import fnmatch
import ipaddress
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.errors import PreflightFailed

_SIOCGIFADDR = 0x8915
LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """An IPv4 address and the network interface that has it (None: no interface has it)."""

    address: str
    interface: str | None


def interface_addresses() -> dict[str, str]:
    """IPv4 address of each network interface that has one, in the kernel's order."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def choose(
    interface: str | None, node: str, host_suffix: str, addresses: Mapping[str, str]
) -> NodeAddress:
    """Pure part of ``node_address``, but for the look-up of a host name."""
    if interface == LOOPBACK:
        return NodeAddress("127.0.0.1", _owner("127.0.0.1", addresses))
    if interface is not None:
        for name, address in addresses.items():
            if fnmatch.fnmatchcase(name, interface):
                return NodeAddress(address, name)
        known = ", ".join(f"{name} {address}" for name, address in addresses.items())
        raise PreflightFailed(
            f"{node} has no network interface {interface!r} with an IPv4 address (it has {known})",
            remedy="set `interface` in the site config to one of them, or to a pattern like hsn*",
        )
    host = node + host_suffix
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise PreflightFailed(
            f"{node}: its name {host} does not resolve",
            remedy="set `interface` (or `host_suffix`) in the site config",
        ) from error
    if ipaddress.ip_address(address).is_loopback:
        # Debian maps a host's own name to 127.0.1.1: the others cannot use that.
        return _only_outward(node, host, address, addresses)
    return NodeAddress(address, _owner(address, addresses))


def node_address(interface: str | None, node: str, host_suffix: str = "") -> NodeAddress:
    """Address on the named interface (a shell-style pattern or ``loopback``), or what the node's
    name plus ``host_suffix`` resolves to. Raises PreflightFailed with the interfaces there are.
    """
    return choose(interface, node, host_suffix, interface_addresses())


def _owner(address: str, addresses: Mapping[str, str]) -> str | None:
    return next((name for name, own in addresses.items() if own == address), None)


def _only_outward(node: str, host: str, resolved: str, addresses: Mapping[str, str]) -> NodeAddress:
    outward = {
        name: address
        for name, address in addresses.items()
        if not ipaddress.ip_address(address).is_loopback
    }
    if len(outward) == 1:
        name, address = next(iter(outward.items()))
        return NodeAddress(address, name)
    known = ", ".join(f"{name} {address}" for name, address in outward.items()) or "none"
    raise PreflightFailed(
        f"{node}: its name {host} resolves to {resolved}, which other nodes cannot reach; "
        f"interfaces: {known}",
        remedy="set `interface` in the site config",
    )
