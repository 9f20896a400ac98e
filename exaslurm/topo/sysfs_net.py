"""Network devices of a /sys tree: InfiniBand, RoCE, Omni-Path, Slingshot, Ethernet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from exaslurm.core.topology import Fabric, Hca, HcaPort, NumaNode
from exaslurm.topo.files import cpus_of, exists, natural, number, pci_of, read, read_int
from exaslurm.topo.sysfs_pci import near_node


def hcas(sys: Path, numa: Sequence[NumaNode]) -> tuple[Hca, ...]:
    """Every RDMA device, also those that are down, then the network interfaces of hardware that
    belong to none of them; by name."""
    found = [
        *(_verbs(device, sys, numa) for device in _physical(sys / "class/infiniband", "*")),
        *(_slingshot(device, sys, numa) for device in _cassinis(sys)),
    ]
    taken = {name for hca in found for name in hca.interfaces}
    for interface in sorted((sys / "class/net").glob("*")):
        if interface.name in taken or not _is_hardware(interface):
            continue
        found.append(_interface(interface, sys, numa))
    return tuple(sorted(found, key=lambda hca: natural(hca.name)))


def _verbs(device: Path, sys: Path, numa: Sequence[NumaNode]) -> Hca:
    # https://docs.kernel.org/admin-guide/abi-stable-files.html (sysfs-class-infiniband)
    ports = tuple(_port(port) for port in sorted((device / "ports").glob("[0-9]*"), key=number))
    layers = {port.link_layer for port in ports}
    fabric: Fabric = "infiniband" if layers != {"Ethernet"} else "roce"
    if device.name.startswith("hfi1"):
        fabric = "omnipath"
    pci, path = pci_of(device)
    node, cpus = _locality(device / "device", pci, sys, numa)
    return Hca(
        name=device.name,
        fabric=fabric,
        ports=ports,
        pci=pci,
        numa=node,
        cpus=cpus,
        pci_path=path,
        interfaces=_interfaces(sys, device / "device", pci),
        node_guid=read(device / "node_guid"),
        firmware=read(device / "fw_ver"),
        board=read(device / "board_id"),
    )


def _port(port: Path) -> HcaPort:
    """``4: ACTIVE``, ``5: LinkUp``, ``200 Gb/sec (4X HDR)``, ``0x1``."""
    state = (read(port / "state") or "").partition(":")[2].strip() or "UNKNOWN"
    phys = (read(port / "phys_state") or "").partition(":")[2].strip()
    rate = re.match(r"[\d.]+", read(port / "rate") or "")
    gid = (read(port / "gids/0") or "").split(":")
    lid = read(port / "lid") or ""
    return HcaPort(
        number=number(port),
        state=state,
        rate_gbps=float(rate.group()) if rate else 0.0,
        link_layer=read(port / "link_layer") or "unknown",
        phys_state=phys or None,
        # The lower half of the first GID is the port's GUID.
        guid=":".join(gid[4:]) if len(gid) == 8 else None,
        lid=int(lid, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", lid) else None,
    )


def _cassinis(sys: Path) -> list[Path]:
    # libcxi goes by cxi_user, libfabric by cxi.
    by_class = (_physical(sys / "class" / name, "cxi[0-9]*") for name in ("cxi", "cxi_user"))
    return next((found for found in by_class if found), [])


def _physical(folder: Path, pattern: str) -> list[Path]:
    """Without the virtual functions of this machine's guests and containers."""
    return [path for path in sorted(folder.glob(pattern)) if not exists(path / "device/physfn")]


def _slingshot(device: Path, sys: Path, numa: Sequence[NumaNode]) -> Hca:
    """HPE's Cassini: the device ``cxi0`` and the Ethernet interface ``hsn0`` of the same PCI
    function, which tells state and rate."""
    pci, path = pci_of(device)
    node, cpus = _locality(device / "device", pci, sys, numa)
    interfaces = _interfaces(sys, device / "device", pci)
    ports = tuple(_ethernet_port(sys / "class/net" / name, number=1) for name in interfaces[:1])
    return Hca(
        name=device.name,
        fabric="slingshot",
        ports=ports,
        pci=pci,
        numa=node,
        cpus=cpus,
        pci_path=path,
        interfaces=interfaces,
        board=read(device / "device/fru/description") or None,
    )


def _interface(interface: Path, sys: Path, numa: Sequence[NumaNode]) -> Hca:
    pci, path = pci_of(interface)
    node, cpus = _locality(interface / "device", pci, sys, numa)
    fabric: Fabric = "slingshot" if interface.name.startswith("hsn") else "ethernet"
    return Hca(
        name=interface.name,
        fabric=fabric,
        ports=(_ethernet_port(interface, number=1),),
        pci=pci,
        numa=node,
        cpus=cpus,
        pci_path=path,
        interfaces=(interface.name,),
    )


def _ethernet_port(interface: Path, *, number: int) -> HcaPort:
    speed = read_int(interface / "speed")  # Mb/s; -1, or an error, where there is no link
    up = read(interface / "operstate") == "up" or read(interface / "carrier") == "1"
    return HcaPort(
        number=number,
        state="ACTIVE" if up else "DOWN",
        rate_gbps=speed / 1000 if speed else 0.0,
        link_layer="Ethernet" if read(interface / "type") == "1" else "InfiniBand",
        guid=read(interface / "address") or None,
        mtu=read_int(interface / "mtu"),
    )


def _is_hardware(interface: Path) -> bool:
    """A physical interface, not a bridge, a VLAN, a container's end or a virtual function."""
    device = interface / "device"
    real = pci_of(interface)[0] is not None or exists(device)  # not on PCI: guests of Hyper-V
    return real and not exists(device / "physfn")


def _interfaces(sys: Path, device: Path, pci: str | None) -> tuple[str, ...]:
    """Network interfaces of the same PCI function."""
    below = {path.name for path in (device / "net").glob("*")}
    if pci is not None:
        # Some recorded trees lack `device`, but not the interface's own place on the bus.
        others = (sys / "class/net").glob("*")
        below |= {path.name for path in others if pci_of(path)[0] == pci}
    return tuple(sorted(below, key=natural))


def _locality(
    device: Path, pci: str | None, sys: Path, numa: Sequence[NumaNode]
) -> tuple[int | None, tuple[int, ...]]:
    place = sys / "bus/pci/devices" / pci if pci is not None else device
    if not exists(place):
        place = device
    cpus = cpus_of(place, "local_cpu") or cpus_of(place, "local_cpus")
    return near_node(read_int(place / "numa_node"), cpus, numa), cpus
