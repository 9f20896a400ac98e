"""Exports of lstopo: the same small node in the three versions of the format."""

from __future__ import annotations

import re

import pytest

from exaslurm.core.topology import NodeTopology
from exaslurm.errors import UserError
from exaslurm.topo.hwloc_xml import read_hwloc
from exaslurm.topo.nearness import nearest_hcas, nearness

DEVICES = """
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[10-1f]" gp_index="20">
 <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[11-14]" pci_busid="0000:10:01.0"
         pci_type="0604 [8086:3c02] [0000:0000] 07 00">
  <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[12-14]" pci_busid="0000:11:00.0"
          pci_type="0604 [10b5:8747] [0000:0000] ca 00">
   <object type="PCIDev" pci_busid="0000:12:00.0" pci_type="0302 [10de:20b0] [10de:1450] a1 00"
           gp_index="30">
    <info name="PCIDevice" value="GA100"/>
    <object type="OSDev" name="nvml0" subtype="NVML" osdev_type="{gpu}" gp_index="31">
     <info name="NVIDIAUUID" value="GPU-aa"/><info name="GPUModel" value="A100-SXM4-40GB"/>
    </object>
    <object type="OSDev" name="cuda0" subtype="CUDA" osdev_type="{coproc}" gp_index="32">
     <info name="CUDAGlobalMemorySize" value="41480192{kib}"/>
    </object>
   </object>
   <object type="PCIDev" pci_busid="0000:13:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00 00">
    <object type="OSDev" name="ib0" osdev_type="{net}"/>
    <object type="OSDev" name="mlx5_0" osdev_type="{ofed}">
     <info name="NodeGUID" value="b859:9f03:0007:053a"/>
     <info name="Port1State" value="4"/><info name="Port1LID" value="0x1a"/>
     <info name="Port1GID0" value="fe80:0000:0000:0000:b859:9f03:0007:053a"/>
    </object>
   </object>
  </object>
 </object>
 <object type="PCIDev" pci_busid="0000:1e:00.0" pci_type="0302 [10de:20b0] [10de:1450] a1 00"
         gp_index="40"/>
 <object type="PCIDev" pci_busid="0000:1f:00.0" pci_type="0108 [144d:a80a] [0000:0000] 00 00">
  <object type="OSDev" name="nvme0n1" subtype="Disk" osdev_type="{block}">
   <info name="Size" value="1875374424{kib}"/><info name="Model" value="SAMSUNG MZ1L2"/>
  </object>
 </object>
</object>
"""
OLD = {"block": "0", "gpu": "1", "net": "2", "ofed": "3", "coproc": "5", "kib": ""}
BITS = {"block": "1", "gpu": "4", "net": "16", "ofed": "48", "coproc": "12", "kib": "KiB"}

CORES = """
<object type="L3Cache" cpuset="{cpus}"><object type="L2Cache" cpuset="{cpus}">
 <object type="Core" os_index="{first}" cpuset="{first_set}">
  <object type="PU" os_index="{first}" cpuset="{first_set}"/></object>
 <object type="Core" os_index="{second}" cpuset="{second_set}">
  <object type="PU" os_index="{second}" cpuset="{second_set}"/></object>
</object></object>
"""
FIRST = CORES.format(cpus="0x3", first=0, first_set="0x1", second=1, second_set="0x2")
SECOND = CORES.format(cpus="0xc", first=2, first_set="0x4", second=3, second_set="0x8")

MEMORY = 'cpuset="{cpus}" complete_cpuset="{cpus}" local_memory="{size}"'
NUMA0 = MEMORY.format(cpus="0x3", size=64 << 30)
NUMA1 = MEMORY.format(cpus="0xc", size=64 << 30)
GPU_MEMORY = MEMORY.format(cpus="0xc", size=40 << 30)


def modern(version: str, kinds: dict[str, str]) -> str:
    """2.x and 3.x: NUMA nodes are memory children, and a GPU's memory hangs on its socket."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="{version}">
 <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf">
  <info name="HostName" value="n001"/><info name="Architecture" value="x86_64"/>
  <object type="Group" cpuset="0xf">
   <object type="Package" os_index="0" cpuset="0x3">
    <object type="NUMANode" os_index="0" {NUMA0}/>{FIRST}</object>
   <object type="Package" os_index="1" cpuset="0xc">
    <object type="Die" cpuset="0xc">
    <object type="NUMANode" os_index="1" {NUMA1}/>
    <object type="NUMANode" os_index="8" subtype="GPUMemory" {GPU_MEMORY}>
     <info name="PCIBusID" value="00000000:12:00.0"/></object>
    <object type="NUMANode" os_index="9" subtype="HBM" {GPU_MEMORY}/>
    {SECOND}{DEVICES.format(**kinds)}</object></object>
  </object>
  <object type="Misc" name="dimm0"/>
 </object>
 <distances2 type="NUMANode" nbobjs="4" kind="5" name="NUMALatency" indexing="os">
  <indexes length="8">0 1 8 9 </indexes>
  <u64values length="30">10 21 80 40 21 10 80 30 </u64values>
  <u64values length="30">80 80 10 80 40 30 80 10 </u64values>
 </distances2>
 <distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth" indexing="gp">
  <indexes length="6">31 40 </indexes>
  <u64values length="30">1000000 100000 100000 1000000 </u64values>
 </distances2>
</topology>"""


def old() -> str:
    """1.x: NUMA nodes are parents, sockets are called so, caches have a depth."""
    first, second = (
        re.sub(r'type="L3Cache"', 'type="Cache" depth="3"', text).replace("L2Cache", "Cache")
        for text in (FIRST, SECOND)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<topology>
 <object type="Machine" os_index="0" cpuset="0x0000000f">
  <info name="HostName" value="n001"/>
  <distances nbobjs="2" relative_depth="1" latency_base="10.000000">
   <latency value="1.000000"/><latency value="2.100000"/>
   <latency value="2.100000"/><latency value="1.000000"/>
  </distances>
  <object type="NUMANode" os_index="0" {NUMA0}>
   <object type="Socket" os_index="0" cpuset="0x3">{first}</object></object>
  <object type="NUMANode" os_index="1" {NUMA1}>
   <object type="Socket" os_index="1" cpuset="0xc">{second}</object>
   {DEVICES.format(**OLD)}</object>
 </object>
</topology>"""


@pytest.fixture(params=["1", "2.0", "2.12", "3.0"])
def topology(request: pytest.FixtureRequest) -> NodeTopology:
    version: str = request.param
    if version == "1":
        return read_hwloc(old(), where="old.xml")
    kinds = BITS if version == "3.0" else OLD
    return read_hwloc(modern(version, kinds), where="new.xml")


def test_cores_and_memory(topology: NodeTopology) -> None:
    assert topology.host == "n001"
    assert [(c.cpus, c.package, c.numa, c.l3) for c in topology.cores] == [
        ((0,), 0, 0, 0), ((1,), 0, 0, 0), ((2,), 1, 1, 1), ((3,), 1, 1, 1),
    ]  # fmt: skip
    assert [(n.index, n.cpus, n.mem_mib) for n in topology.memory_nodes] == [
        (0, (0, 1), 65536), (1, (2, 3), 65536),
    ]  # fmt: skip
    assert topology.numa[0].distances[:2] == (10, 21)


def test_devices(topology: NodeTopology) -> None:
    first, second = topology.gpus
    assert (first.index, first.vendor, first.pci, first.numa) == (0, "nvidia", "0000:12:00.0", 1)
    assert (first.uuid, first.name, first.mem_mib) == ("GPU-aa", "A100-SXM4-40GB", 40508)
    assert first.pci_path == ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    assert (second.index, second.pci, second.uuid) == (1, "0000:1e:00.0", None)
    (hca,) = topology.hcas
    assert (hca.name, hca.fabric, hca.interfaces, hca.numa) == ("mlx5_0", "infiniband", ("ib0",), 1)
    (port,) = hca.ports
    assert (port.state, port.lid, port.guid) == ("ACTIVE", 26, "b859:9f03:0007:053a")
    assert nearest_hcas(first, topology.hcas) == (hca,)
    assert (nearness(first, hca), nearness(second, hca)) == ("PIX", "PHB")
    (drive,) = topology.drives
    assert (drive.name, drive.size_gib, drive.numa) == ("nvme0n1", 1788.5, 1)


def test_a_gpus_memory_and_a_processors_own() -> None:
    topology = read_hwloc(modern("3.0", BITS), where="new.xml")
    kinds = [(node.index, node.kind, node.cpus) for node in topology.numa]
    assert kinds == [(0, "cpu", (0, 1)), (1, "cpu", (2, 3)), (8, "device", ()), (9, "special", ())]
    assert [gpu.memory_node for gpu in topology.gpus] == [8, None]


def test_links() -> None:
    topology = read_hwloc(modern("2.12", OLD), where="new.xml")
    assert [(link.a, link.b, link.kind) for link in topology.links] == [(0, 1, "nvlink")]


def test_links_by_hops() -> None:
    text = modern("2.12", OLD).replace("NVLinkBandwidth", "XGMIHops")
    text = text.replace("1000000 100000 100000 1000000", "0 1 1 0")
    assert [link.kind for link in read_hwloc(text, where="x").links] == ["xgmi"]
    text = text.replace("0 1 1 0 ", "0 2 2 0 ")
    assert read_hwloc(text, where="x").links == ()


def test_what_a_cgroup_took_away_is_no_memory_without_cpus() -> None:
    text = modern("3.0", BITS).replace(
        f'<object type="NUMANode" os_index="0" {NUMA0}/>',
        f'<object type="NUMANode" os_index="0" {NUMA0.replace("0x3", "0x0", 1)}/>',
    )
    node = read_hwloc(text, where="x").numa[0]
    assert (node.kind, node.cpus) == ("cpu", (0, 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [("<topology", "not XML"), ("<system/>", "<system>"), ("<topology/>", "not an hwloc topology")],
)
def test_what_is_no_export(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_hwloc(text, where="x.xml")
    assert "x.xml" in str(caught.value)
