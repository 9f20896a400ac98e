"""The wires: one switch (a bridge in a namespace of its own), one link for each host.

Only one interface appears on the real machine: its own link to the switch. All of it goes when
the processes that hold the namespaces end.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable

from labkit.errors import LabError
from labkit.layout import OUTSIDE_NUMBER, Host

NETWORK = "10.77"
BRIDGE = "switch"


def address(subnet: int, number: int) -> str:
    return f"{NETWORK}.{subnet}.{number}"


def outside_interface(subnet: int) -> str:
    """Name of the lab's one interface on the real machine."""
    return f"exalab{subnet}"


def _ip(commands: Iterable[str], namespace_pid: int | None = None) -> None:
    """Run `ip` commands, in the network namespace of a process if one is given."""
    argv = ["ip", "-batch", "-"]
    if namespace_pid is not None:
        argv = ["nsenter", "--target", str(namespace_pid), "--net", *argv]
    text = "\n".join(commands) + "\n"
    result = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise LabError(f"ip: {result.stderr.strip()}\nwhile doing:\n{text}")


def used_subnets() -> set[int]:
    """Third parts of all 10.77.x addresses that the machine has or routes to."""
    text = ""
    for kind in (["address"], ["route", "show", "table", "all"]):
        text += subprocess.run(
            ["ip", "-4", "-o", *kind], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    words = (word.partition("/")[0] for word in text.split())
    parts = [word.split(".") for word in words if word.startswith(f"{NETWORK}.")]
    return {int(part[2]) for part in parts if len(part) > 2 and part[2].isdigit()}


def choose_subnet(taken: set[int]) -> int:
    for subnet in range(256):
        if subnet not in taken:
            return subnet
    raise LabError(f"no free subnet in {NETWORK}.0.0/16: take a lab down first")


def build_switch(fabric_pid: int, subnet: int) -> None:
    """Make the bridge, and the real machine's link to it."""
    _ip(
        [
            f"link add {BRIDGE} type bridge forward_delay 0",
            f"link set {BRIDGE} up",
            "link set lo up",
        ],
        fabric_pid,
    )
    outside = outside_interface(subnet)
    _ip(
        [
            f"link add {outside} type veth peer name outside netns {fabric_pid}",
            f"address add {address(subnet, OUTSIDE_NUMBER)}/24 dev {outside}",
            f"link set {outside} up",
        ]
    )
    _ip([f"link set outside master {BRIDGE} up"], fabric_pid)


def connect_host(fabric_pid: int, holder_pid: int, subnet: int, host: Host) -> None:
    """Give the host its interface `eth0`, wired to the switch."""
    port = f"p-{host.name}"
    # The same after a restart, as that of a real interface: the others have it in their tables.
    mac = f"02:00:0a:4d:{subnet:02x}:{host.number:02x}"
    _ip(
        [
            f"link add {port} type veth peer name eth0 address {mac} netns {holder_pid}",
            f"link set {port} master {BRIDGE} up",
        ],
        fabric_pid,
    )
    _ip(
        [
            "link set lo up",
            f"address add {address(subnet, host.number)}/24 dev eth0",
            "link set eth0 up",
        ],
        holder_pid,
    )


def cut_link(fabric_pid: int, host: str) -> None:
    """Take the host's port out of the switch: frames vanish, both ends see a carrier still."""
    _ip([f"link set p-{host} nomaster"], fabric_pid)


def restore_link(fabric_pid: int, host: str) -> None:
    _ip([f"link set p-{host} master {BRIDGE} up"], fabric_pid)


def _ports(fabric_pid: int) -> dict[str, bool]:
    """For each host that has a port: whether it is in the switch."""
    argv = ["nsenter", "--target", str(fabric_pid), "--net", "ip", "-json", "link"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    if result.returncode:
        raise LabError(f"ip: {result.stderr.strip()}")
    return {
        link["ifname"][2:]: link.get("master") == BRIDGE
        for link in json.loads(result.stdout)
        if link["ifname"].startswith("p-")
    }


def connected_hosts(fabric_pid: int) -> set[str]:
    """Hosts whose ports are in the switch."""
    return {host for host, connected in _ports(fabric_pid).items() if connected}


def port_exists(fabric_pid: int, host: str) -> bool:
    return host in _ports(fabric_pid)


def remove_outside_interface(subnet: int) -> None:
    """Only needed if the switch's namespace outlived its holder."""
    name = outside_interface(subnet)
    subprocess.run(["ip", "link", "delete", name], capture_output=True, timeout=30)


def interface_exists(subnet: int) -> bool:
    argv = ["ip", "link", "show", outside_interface(subnet)]
    return subprocess.run(argv, capture_output=True, timeout=30).returncode == 0
