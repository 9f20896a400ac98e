"""One topology from two sources."""

from __future__ import annotations

from exaslurm.core.topology import Core, Drive, Gpu, GpuLink, Hca, HcaPort, NodeTopology, NumaNode
from exaslurm.topo.merge import merge

CORE = Core(cpus=(0,), package=0, numa=0)
NUMA = NumaNode(index=0, kind="cpu", cpus=(0,), mem_mib=1024)
PORT = HcaPort(number=1, state="ACTIVE", rate_gbps=200.0, link_layer="InfiniBand")


def test_each_fact_from_the_first_that_has_it() -> None:
    first = NodeTopology(
        host="n1",
        sources=("a",),
        cores=(CORE,),
        numa=(NUMA,),
        gpus=(Gpu(index=0, vendor="nvidia", pci="0000:01:00.0", numa=1),),
        hcas=(Hca(name="mlx5_0", fabric="infiniband", ports=(PORT,)),),
    )
    second = NodeTopology(
        host="other",
        sources=("b",),
        arch="x86_64",
        cores=(CORE, CORE),
        gpus=(Gpu(index=7, vendor="nvidia", pci="0000:01:00.0", numa=3, uuid="GPU-a"),),
        hcas=(Hca(name="mlx5_0", fabric="roce", numa=2),),
        drives=(Drive(name="nvme0n1"),),
    )
    merged = merge(first, second)
    assert (merged.host, merged.arch, merged.sources) == ("n1", "x86_64", ("a", "b"))
    assert (merged.cores, merged.numa) == ((CORE,), (NUMA,))
    assert merged.gpus == (Gpu(index=0, vendor="nvidia", pci="0000:01:00.0", numa=1, uuid="GPU-a"),)
    assert merged.hcas == (Hca(name="mlx5_0", fabric="infiniband", ports=(PORT,), numa=2),)
    assert merged.drives == second.drives


def test_gpus_are_the_same_by_uuid_where_no_address_is_known() -> None:
    first = NodeTopology(host="n", gpus=(Gpu(index=0, vendor="amd", uuid="9f4c", pci="a"),))
    second = NodeTopology(host="n", gpus=(Gpu(index=3, vendor="amd", uuid="9f4c", name="MI250X"),))
    (gpu,) = merge(first, second).gpus
    assert (gpu.index, gpu.pci, gpu.name) == (0, "a", "MI250X")


def test_links_follow_their_gpus() -> None:
    def node(*buses: str, links: tuple[GpuLink, ...] = ()) -> NodeTopology:
        gpus = tuple(Gpu(index=i, vendor="amd", pci=bus) for i, bus in enumerate(buses))
        return NodeTopology(host="n", gpus=gpus, links=links)

    link = GpuLink(a=0, b=1, kind="xgmi", lanes=4)
    merged = merge(node("a", "b", "c"), node("c", "b", links=(link,)))
    assert merged.links == (GpuLink(a=1, b=2, kind="xgmi", lanes=4),)
    # A GPU of the second source only comes last.
    merged = merge(node("a"), node("z", "a", links=(link,)))
    assert [gpu.pci for gpu in merged.gpus] == ["a", "z"]
    assert merged.links == (link,)


def test_the_firsts_own_links_stand() -> None:
    gpus = tuple(Gpu(index=i, vendor="nvidia", pci=str(i)) for i in range(2))
    first, second = (
        NodeTopology(host="n", gpus=gpus, links=(GpuLink(a=0, b=1, kind="nvlink", lanes=lanes),))
        for lanes in (4, 1)
    )
    assert merge(first, second).links[0].lanes == 4
