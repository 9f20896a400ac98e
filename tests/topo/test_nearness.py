"""Near and far on the bus, as nvidia-smi calls it."""

from __future__ import annotations

import pytest

from exaslurm.core.topology import Gpu, GpuLink, Hca, NodeTopology
from exaslurm.topo.nearness import islands, link_between, nearest_hcas, nearness

ROOT = ("pci0000:10", "0000:10:01.0")
SWITCH = (*ROOT, "0000:11:00.0")


def gpu(path: tuple[str, ...], *, pci: str = "0000:13:00.0", numa: int | None = 0) -> Gpu:
    return Gpu(index=0, vendor="nvidia", pci=pci, pci_path=path, numa=numa)


def hca(path: tuple[str, ...], *, pci: str = "0000:14:00.0", numa: int | None = 0) -> Hca:
    return Hca(name="mlx5_0", fabric="infiniband", pci=pci, pci_path=path, numa=numa)


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        # Two functions of one slot; two ports of one switch.
        (ROOT, ROOT, "PIX"),
        ((*SWITCH, "0000:12:00.0"), (*SWITCH, "0000:12:04.0"), "PIX"),
        # A switch below a switch.
        (
            (*SWITCH, "0000:12:00.0", "0000:15:00.0", "0000:16:00.0"),
            (*SWITCH, "0000:12:04.0"),
            "PXB",
        ),
        # Two root ports of one host bridge.
        (ROOT, ("pci0000:10", "0000:10:02.0"), "PHB"),
        (ROOT, ("pci0000:20", "0000:20:02.0"), "NODE"),
        ((), ("pci0000:20",), "NODE"),
    ],
)
def test_ways_over_the_bus(one: tuple[str, ...], other: tuple[str, ...], near: str) -> None:
    assert nearness(gpu(one), hca(other)) == near
    assert nearness(hca(other), gpu(one)) == near


def test_itself_and_the_other_socket() -> None:
    assert nearness(gpu(ROOT), gpu(ROOT)) == "SELF"
    assert nearness(gpu(ROOT), hca(("pci0000:80",), numa=1)) == "SYS"
    assert nearness(gpu(ROOT, numa=None), hca(("pci0000:80",), numa=1)) == "SYS"


def test_the_nearest_are_all_that_are_as_near() -> None:
    far = Hca(name="a", fabric="infiniband", pci="1", pci_path=("pci0000:80",), numa=1)
    near = [
        Hca(name=name, fabric="infiniband", pci=name, pci_path=(f"pci{name}",), numa=0)
        for name in ("b", "c")
    ]
    assert nearest_hcas(gpu(ROOT), [far, *near]) == tuple(near)


def test_plain_interfaces_only_where_there_is_nothing_else() -> None:
    plain = Hca(name="eth0", fabric="ethernet", pci="0000:13:00.1", pci_path=ROOT, numa=0)
    far = Hca(name="mlx5_0", fabric="roce", pci="2", pci_path=("pci0000:80",), numa=1)
    assert nearest_hcas(gpu(ROOT), [plain, far]) == (far,)
    assert nearest_hcas(gpu(ROOT), [plain]) == (plain,)
    assert nearest_hcas(gpu(ROOT), []) == ()


def test_a_device_of_unknown_place_is_near_to_nothing() -> None:
    lost = Hca(name="cxi0", fabric="slingshot", pci="3")
    assert nearest_hcas(gpu(ROOT), [lost]) == ()


def test_islands_of_links() -> None:
    topology = NodeTopology(
        host="n",
        gpus=tuple(Gpu(index=i, vendor="amd") for i in range(6)),
        links=tuple(GpuLink(a=a, b=b, kind="xgmi") for a, b in ((0, 3), (1, 2), (3, 5))),
    )
    assert islands(topology) == ((0, 3, 5), (1, 2), (4,))
    assert link_between(topology, 5, 3) == topology.links[2]
    assert link_between(topology, 0, 5) is None
