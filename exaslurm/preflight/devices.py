"""GPUs, InfiniBand ports and NUMA nodes."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.core.topology import Gpu, Hca, HcaPort, NodeTopology
from exaslurm.preflight.host import Host
from exaslurm.topo.files import as_list, cpu_list

# Lanes of a link that is all there: InfiniBand trains down to fewer when a cable is bad.
_WHOLE = ("4X", "8X", "12X")


def is_rdma(topology: NodeTopology) -> bool:
    """Whether the node has a network for which memory is locked."""
    return any(hca.fabric in ("infiniband", "roce", "omnipath") for hca in topology.hcas)


def check_gpus(host: Host, topology: NodeTopology, expected: int | None) -> Iterator[Check]:
    """As many GPUs as the node's kind has, all of one model, each near a known NUMA node."""
    gpus = topology.gpus
    if not gpus and not expected:
        yield skipped("gpu.count", "no GPU here, none expected")
        return
    value = f"{len(gpus)}" + ("" if expected is None else f" of {expected}")
    if expected is not None and len(gpus) < expected:
        remedy = (
            "a GPU fell off the bus or has no driver (dmesg | grep -i -e xid -e amdgpu): drain the "
            "node; if no node has more, mend `gpus` of its kind in the site config"
        )
        yield failed("gpu.count", value, remedy)
    else:
        yield passed("gpu.count", value)
    models = gpu_models(host, topology)
    if len(models) > 1:
        value = ", ".join(f"{count} x {model}" for model, count in models.items())
        yield warned("gpu.model", value, "replicas of one model want equal GPUs: split the kind")
    elif models:
        yield passed("gpu.model", next(iter(models)))
    driver = gpu_driver(host)
    if driver is not None:
        yield passed("gpu.driver", driver)
    elif gpus:
        yield warned("gpu.driver", "no driver module is loaded", "load the GPU driver, or drain")
    far = [gpu for gpu in gpus if gpu.numa is None]
    if gpus and far and len(topology.numa) > 1:
        names = ", ".join(gpu.pci or str(gpu.index) for gpu in far)
        yield warned(
            "gpu.numa",
            f"the firmware does not say which NUMA node is near {names}",
            "replicas cannot be put near their GPUs: a BIOS update may tell (numa_node is -1)",
        )


def check_gpu_order(topology: NodeTopology, expected: Sequence[str]) -> Iterator[Check]:
    """GPUs are near the CPUs that the site config says, in the order of their numbers."""
    wrong = []
    for index, text in enumerate(expected):
        gpu = next((gpu for gpu in topology.gpus if gpu.index == index), None)
        near = _near(topology, gpu) if gpu is not None else ()
        if near and not set(near) & set(cpu_list(text)):
            wrong.append(f"GPU {index} is near {as_list(near)}, not {text}")
    if wrong:
        yield warned(
            "gpu.order",
            "; ".join(wrong),
            "engines are bound by what the node shows; mend gpu_cpus of its kind in the site "
            "config, or ask why this node is wired in another way",
        )
    elif expected and topology.gpus:
        yield passed("gpu.order", "as the site config says")


def _near(topology: NodeTopology, gpu: Gpu) -> tuple[int, ...]:
    """The CPUs near a GPU; none where nobody knows."""
    nodes = (node.cpus for node in topology.numa if node.index == gpu.numa)
    return gpu.cpus or next(nodes, ())


def gpu_models(host: Host, topology: NodeTopology) -> Counter[str]:
    """Names of the GPUs' models and how many there are of each; empty where nothing tells."""
    names = [gpu.name for gpu in topology.gpus if gpu.name]
    if not names:
        files = sorted((host.proc / "driver/nvidia/gpus").glob("*/information"))
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in files)
        found = (re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in texts)
        names = [match.group(1) for match in found if match is not None]
    return Counter(names)


def gpu_driver(host: Host) -> str | None:
    """``nvidia 570.86.15``: the kernel module and its version; None where there is none."""
    text = host.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text + " ")
    if match is not None:
        return f"nvidia {match.group(1)}"
    for module in ("nvidia", "amdgpu", "i915", "xe"):
        if (host.sys / "module" / module).is_dir() and _drives_something(host, module):
            version = host.read(f"/sys/module/{module}/version")
            return f"{module} {version}" if version else f"{module} (of the kernel)"
    return None


def _drives_something(host: Host, module: str) -> bool:
    """A loaded module may have no device: i915 on a server without Intel's GPUs, for one."""
    driver = host.sys / "bus/pci/drivers" / module
    return not driver.is_dir() or any(driver.glob("[0-9a-f]*:*"))


def check_fabric(host: Host, topology: NodeTopology, wanted: Sequence[str]) -> Iterator[Check]:
    """Every network device has a port that is up, and every such port its full width and the rate
    of the others of its kind. ``wanted``: the devices that the site names, or patterns; then no
    others are looked at."""
    devices = [hca for hca in topology.hcas if hca.ports and hca.fabric != "ethernet"]
    if wanted:
        devices = [hca for hca in topology.hcas if any(_is(hca, name) for name in wanted)]
        for name in wanted:
            if not any(_is(hca, name) for hca in devices):
                remedy = "its driver is not loaded, or `fabric: hcas` in the site config is wrong"
                yield failed("ib.state", "there is no such device", remedy, subject=name)
    elif not devices:
        yield skipped("ib.state", "no InfiniBand, Omni-Path, RoCE or Slingshot device here")
    wired = [hca for hca in devices if any(port.state == "ACTIVE" for port in hca.ports)]
    for hca in devices:
        active = [port for port in hca.ports if port.state == "ACTIVE"]
        if not active and hca.ports:
            yield _inactive(hca, needed=bool(wanted) or not wired)
        alike = [port for other in wired if other.board == hca.board for port in other.ports]
        for port in active:
            name = f"{hca.name}:{port.number}"
            yield passed("ib.state", f"{port.state}, {port.link_layer}", subject=name)
            yield _rate(host, hca, port, max(other.rate_gbps for other in alike))


def _is(hca: Hca, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (hca.name, *hca.interfaces))


def _inactive(hca: Hca, *, needed: bool) -> Check:
    """A device without a port that is up. The second port of a card is a device of its own and
    often not wired, on all nodes alike: so it is a failure if the site names it, if nothing else
    is up, or (as ``uniform.fabric``) if more is up on other nodes."""
    port = hca.ports[0]
    name = f"{hca.name}:{port.number}"
    value = port.state + (f", {port.phys_state}" if port.phys_state else "")
    remedy = (
        "fine if it is not wired; else the cable, the switch port or the subnet manager "
        "(ibstat, ibdiagnet, ip link): drain the node"
    )
    return (failed if needed else warned)("ib.state", value, remedy, subject=name)


def _rate(host: Host, hca: Hca, port: HcaPort, best: float) -> Check:
    name = f"{hca.name}:{port.number}"
    text = host.read(f"/sys/class/infiniband/{hca.name}/ports/{port.number}/rate") or ""
    value = text or f"{port.rate_gbps:g} Gb/s"
    if port.rate_gbps == 0:
        return skipped("ib.rate", "the driver does not tell", subject=name)
    lanes = re.search(r"\((\d+X)", text)
    remedy = "the link trained down: reseat or change the cable (ibdiagnet), drain the node"
    if lanes is not None and lanes.group(1) not in _WHOLE:
        return failed("ib.rate", value, remedy, subject=name)
    if port.rate_gbps < best:
        return warned("ib.rate", f"{value}; others have {best:g} Gb/s", remedy, subject=name)
    return passed("ib.rate", value, subject=name)


def check_numa(topology: NodeTopology) -> Check:
    """Every NUMA node with CPUs has memory, and about as much as the others."""
    ident = "numa.map"
    nodes = [node for node in topology.numa if node.cpus]
    if not nodes:
        return skipped(ident, "the kernel shows no NUMA nodes")
    value = "; ".join(
        f"node {node.index}: {len(node.cpus)} CPUs, {node.mem_mib / 1024:.0f} GiB" for node in nodes
    )
    most = max(node.mem_mib for node in nodes)
    poor = [node for node in nodes if node.mem_mib < most / 2]
    remedy = "a memory module is gone or disabled (dmidecode -t memory): drain the node"
    if any(node.mem_mib == 0 for node in poor):
        return failed(ident, value, remedy)
    if poor:
        return warned(ident, value, remedy)
    return passed(ident, value)


def fabric_summary(topology: NodeTopology) -> str:
    """``4 x 200 Gb/s``: what is up, in a form that nodes can be compared by."""
    rates = Counter(
        port.rate_gbps
        for hca in topology.hcas
        if hca.fabric != "ethernet"
        for port in hca.ports
        if port.state == "ACTIVE"
    )
    return ", ".join(f"{count} x {rate:g} Gb/s" for rate, count in sorted(rates.items()))
