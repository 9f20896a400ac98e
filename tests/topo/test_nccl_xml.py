"""Dumps of NCCL: switches, several ports, GPUs behind NVSwitch."""

from __future__ import annotations

import pytest

from exaslurm.errors import UserError
from exaslurm.topo.nccl_xml import read_nccl
from exaslurm.topo.nearness import nearest_hcas, nearness

DUMP = """
<system version="1">
 <cpu numaid="1" affinity="00000000,ffff0000" arch="x86_64" vendor="AuthenticAMD">
  <pci busid="0000:41:00.0" class="0x060400">
   <pci busid="0000:43:00.0" class="0x030200">
    <gpu dev="1" sm="90" rank="1" gdr="1">
     <nvlink target="0000:05:00.0" count="9" tclass="0x068000"/>
     <nvlink target="0000:06:00.0" count="9" tclass="0x068000"/>
    </gpu>
   </pci>
   <pci busid="0000:44:00.0" class="0x020700">
    <nic>
     <net name="mlx5_1" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
     <net name="mlx5_1" dev="1" speed="200000" port="2" guid="0x2" maxconn="131072" gdr="1"/>
    </nic>
   </pci>
  </pci>
 </cpu>
 <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="AuthenticAMD">
  <pci busid="0000:03:00.0" class="0x030200">
   <gpu dev="0" sm="90" rank="0" gdr="1">
    <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/>
   </gpu>
  </pci>
  <pci busid="0000:07:00.0" class="0x020000">
   <nic><net name="cxi0" dev="2" speed="200000" port="1" guid="0x7" gdr="1"/></nic>
  </pci>
  <pci busid="0000:08:00.0" class="0x020000">
   <nic><net name="eno1" dev="3" speed="10000" port="0" guid="0x0" gdr="0"/></nic>
  </pci>
 </cpu>
</system>
"""


def test_a_dump() -> None:
    topology = read_nccl(DUMP, where="node.xml")
    assert [(node.index, node.cpus[0], len(node.cpus)) for node in topology.numa] == [
        (0, 0, 16), (1, 16, 16),
    ]  # fmt: skip
    assert [(gpu.index, gpu.vendor, gpu.pci, gpu.numa) for gpu in topology.gpus] == [
        (0, "nvidia", "0000:03:00.0", 0), (1, "nvidia", "0000:43:00.0", 1),
    ]  # fmt: skip
    assert [(hca.name, hca.fabric, hca.numa) for hca in topology.hcas] == [
        ("cxi0", "slingshot", 0), ("eno1", "ethernet", 0), ("mlx5_1", "infiniband", 1),
    ]  # fmt: skip
    assert [(port.number, port.rate_gbps) for port in topology.hcas[2].ports] == [
        (1, 400.0), (2, 200.0),
    ]  # fmt: skip


def test_nearness_over_switches() -> None:
    topology = read_nccl(DUMP, where="node.xml")
    near = [nearest_hcas(gpu, topology.hcas)[0] for gpu in topology.gpus]
    assert [hca.name for hca in near] == ["cxi0", "mlx5_1"]
    # Every level of a dump is a switch: the same one is PIX.
    found = [nearness(gpu, hca) for gpu, hca in zip(topology.gpus, near, strict=True)]
    assert found == ["NODE", "PIX"]


def test_links_over_a_switch_have_the_lesser_number_of_lanes() -> None:
    (link,) = read_nccl(DUMP, where="node.xml").links
    assert (link.a, link.b, link.kind, link.lanes) == (0, 1, "nvlink", 18)
    (link,) = read_nccl(DUMP.replace('count="18"', 'count="12"'), where="node.xml").links
    assert link.lanes == 12


FOR_CLOUDS = """
<system version="1">
 <cpu numaid="0" affinity="0000ffff" arch="x86_64">
  <pci busid="ffff:ff:01.0" class="0x060400">
   <pci busid="0002:00:00.0" class="0x030200"/>
   <pci busid="0102:00:00.0" class="0x020700"/>
  </pci>
  <pci busid="ffff:ff:02.0" class="0x060400">
   <pci busid="0001:00:00.0" class="0x030200"/>
   <pci busid="0101:00:00.0" class="0x020700"/>
  </pci>
 </cpu>
</system>
"""


def test_a_file_for_virtual_machines_has_classes_only() -> None:
    topology = read_nccl(FOR_CLOUDS, where="vm.xml")
    assert [(gpu.index, gpu.pci) for gpu in topology.gpus] == [
        (0, "0001:00:00.0"), (1, "0002:00:00.0"),
    ]  # fmt: skip
    near = [nearest_hcas(gpu, topology.hcas) for gpu in topology.gpus]
    assert [[(hca.name, hca.ports) for hca in found] for found in near] == [
        [("0101:00:00.0", ())], [("0102:00:00.0", ())],
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [("<system", "not XML"), ("<x/>", "<x>")])
def test_what_is_no_dump(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_nccl(text, where="x.xml")
