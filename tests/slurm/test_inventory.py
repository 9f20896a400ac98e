"""What `scontrol show` says of nodes, partitions and settings, in the words of 22.05."""

from __future__ import annotations

import pytest

from exaslurm.slurm.inventory import (
    parse_gpus,
    parse_nodes,
    parse_partitions,
    parse_settings,
)

GPU_NODE = (
    "NodeName=c2 Arch=x86_64 CoresPerSocket=8  CPUAlloc=0 CPUEfctv=14 CPUTot=16 CPULoad=10.85 "
    "AvailableFeatures=a100,ib,nvme ActiveFeatures=a100,ib,nvme Gres=gpu:a100:4(S:0-1) "
    "NodeAddr=10.77.1.12 NodeHostName=c2 Version=22.05.8 OS=Linux 6.1 #1 SMP CPUTot=99 @0  "
    "RealMemory=65536 AllocMem=0 FreeMem=20545 Boards=1 CoreSpecCount=1 MemSpecLimit=1024 "
    "State=IDLE+DRAIN ThreadsPerCore=2 TmpDisk=0 Weight=1 Partitions=gpu,all  "
    "CfgTRES=cpu=16,mem=64G,billing=16 Reason=disk is full: CPUTot=7 [root@2026-11-30T03:46:17]"
)
OLD_NODE = (
    "NodeName=n1 CPUTot=64 AvailableFeatures=(null) Gres=(null) RealMemory=1000 CoreSpecCount=4 "
    "State=IDLE ThreadsPerCore=2 Partitions=cpu"
)
PARTITION = (
    "PartitionName=gpu AllowGroups=ALL Default={default} MaxNodes={nodes} MaxTime={time} "
    "MinNodes=0 OverSubscribe={share} State=UP"
)


def test_nodes() -> None:
    gpu, old = parse_nodes(f"{GPU_NODE}\n\n{OLD_NODE}\nNo nodes in the system\n")
    assert (gpu.name, gpu.cpus, gpu.usable_cpus, gpu.threads_per_core) == ("c2", 16, 14, 2)
    assert (gpu.mem_mib, gpu.gpus, gpu.state) == (64512, (("a100", 4),), "IDLE+DRAIN")
    assert (gpu.features, gpu.partitions) == (("a100", "ib", "nvme"), ("gpu", "all"))
    # Without CPUEfctv the reserved cores count with all of their threads.
    assert (old.usable_cpus, old.features, old.gpus) == (56, (), ())


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("", ()),
        ("gpu:4", (("", 4),)),
        ("gpu:a100:4(S:0-1),shard:16", (("a100", 4),)),
        ("gpu:a100:2,gpu:h100:1", (("a100", 2), ("h100", 1))),
        ("craynetwork:4", ()),
        ("gpu:nvidia_gh200_120gb:4(S:0,1,2,3)", (("nvidia_gh200_120gb", 4),)),
    ],
)
def test_gpus(gres: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert parse_gpus(gres) == gpus


def test_partitions() -> None:
    text = PARTITION.format(default="YES", nodes="UNLIMITED", time="UNLIMITED", share="NO")
    more = PARTITION.format(default="NO", nodes="64", time="1-00:00:00", share="EXCLUSIVE")
    first, second = parse_partitions(f"{text}\n{more}\n")
    assert (first.is_default, first.max_nodes, first.max_time) == (True, None, None)
    assert (second.is_default, second.max_nodes, second.max_time) == (False, 64, "1-00:00:00")
    assert (first.exclusive, second.exclusive, second.is_up) == (False, True, True)


def test_settings() -> None:
    text = "Configuration data as of 2026\nClusterName   = lab\nGresTypes  = gpu\nA = b=c\n"
    assert parse_settings(text) == {"ClusterName": "lab", "GresTypes": "gpu", "A": "b=c"}
