"""The text of Slurm's configuration files. Pure: settings in, text out."""

from __future__ import annotations

from dataclasses import dataclass

WIDE_CPUS = 16
WIDE_MEMORY_MIB = 65536
GPUS_PER_NODE = 4
FIRST_GPU_DEVICE = 10  # /dev/tty10 to /dev/tty13 stand for the GPUs
NODES_PER_SWITCH = 2


@dataclass(frozen=True)
class Hardware:
    """What a node tells Slurm of itself."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int

    @property
    def cpus(self) -> int:
        return self.sockets * self.cores_per_socket * self.threads_per_core


WIDE_HARDWARE = Hardware(2, WIDE_CPUS // 2, 1, WIDE_MEMORY_MIB)


@dataclass(frozen=True)
class SlurmSettings:
    """Everything the files depend on."""

    cluster: str
    profile: str
    version: tuple[int, int]  # such as (22, 5)
    nodes: tuple[tuple[str, str], ...]  # name, address; the first is the CPU node
    controller: tuple[str, str]
    hardware: Hardware
    cgroup_version: int  # 0: no cgroups
    accounting: bool
    conf: tuple[str, ...] = ()  # further lines of slurm.conf


def parse_hardware(slurmd_c: str) -> Hardware:
    """Read the line that `slurmd -C` prints. Raises KeyError if a value is missing."""
    values = dict(word.partition("=")[::2] for word in slurmd_c.split())
    return Hardware(
        int(values["SocketsPerBoard"]) * int(values["Boards"]),
        int(values["CoresPerSocket"]),
        int(values["ThreadsPerCore"]),
        # Free memory as counted changes by some MiB between boots; never claim more than is there.
        int(values["RealMemory"]) * 95 // 100,
    )


def slurm_conf(settings: SlurmSettings) -> str:
    real = settings.profile == "real"
    hardware = settings.hardware
    cpu_node, gpu_nodes = settings.nodes[0], settings.nodes[1:]
    shape = (
        f"Sockets={hardware.sockets} CoresPerSocket={hardware.cores_per_socket} "
        f"ThreadsPerCore={hardware.threads_per_core} RealMemory={hardware.memory_mib} State=UNKNOWN"
    )
    lines = [
        f"ClusterName={settings.cluster}",
        f"SlurmctldHost={settings.controller[0]}({settings.controller[1]})",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "# Limits of a login shell say nothing about a compute node.",
        "PropagateResourceLimits=NONE",
        "",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "# Heterogeneous jobs are started by the backfill scheduler only.",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=1,sched_interval=2",
        "TopologyPlugin=topology/tree",
        "GresTypes=gpu",
        f"DefMemPerCPU={1024 if real else 2048}",
        "",
        f"ProctrackType={'proctrack/cgroup' if real else 'proctrack/linuxproc'}",
        f"TaskPlugin={'task/affinity,task/cgroup' if real else 'task/none'}",
        "JobAcctGatherType=jobacct_gather/linux",
    ]
    if not real:
        lines.append("SlurmdParameters=config_overrides")
    lines += [
        "",
        "KillWait=30",
        "MinJobAge=3600",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=30",
        "# Two busy cores may carry many nodes; a launch is not lost because it is slow.",
        "BatchStartTimeout=60",
        "MessageTimeout=20",
        "",
    ]
    if settings.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={settings.controller[0]}",
            "AccountingStorageTRES=gres/gpu",
            "",
        ]
    lines.append(f"NodeName={cpu_node[0]} NodeAddr={cpu_node[1]} {shape} Feature=cpu,ib,nvme")
    lines += [
        f"NodeName={name} NodeAddr={address} {shape} Feature=a100,ib,nvme "
        f"Gres=gpu:a100:{GPUS_PER_NODE}"
        for name, address in gpu_nodes
    ]
    limits = "DefaultTime=01:00:00 MaxTime=1-00:00:00 State=UP"
    lines += [
        f"PartitionName=cpu Nodes={cpu_node[0]} Default=YES {limits}",
        f"PartitionName=gpu Nodes={','.join(name for name, _ in gpu_nodes)} Default=NO {limits}",
    ]
    return "\n".join([*lines, *settings.conf]) + "\n"


def gres_conf(settings: SlurmSettings) -> str:
    last = FIRST_GPU_DEVICE + GPUS_PER_NODE - 1
    names = ",".join(name for name, _ in settings.nodes[1:])
    return f"NodeName={names} Name=gpu Type=a100 File=/dev/tty[{FIRST_GPU_DEVICE}-{last}]\n"


def cgroup_conf(settings: SlurmSettings) -> str:
    """Slurm loads a cgroup plugin even where it is told to use no cgroups."""
    if settings.cgroup_version == 0:
        # "disabled" is known from 23.11 on; before, version 1 is the one that touches nothing.
        plugin = "disabled" if settings.version >= (23, 11) else "cgroup/v1"
        return f"CgroupPlugin={plugin}\n"
    lines = [f"CgroupPlugin=cgroup/v{settings.cgroup_version}", "ConstrainCores=yes"]
    if settings.cgroup_version == 2:
        # A host has no systemd that would make its scopes and hand controllers on.
        lines.append("IgnoreSystemd=yes")
        if settings.version >= (23, 11):
            lines.append("EnableControllers=yes")
    return "\n".join(lines) + "\n"


def topology_conf(settings: SlurmSettings) -> str:
    """Leaf switches of two nodes each below one spine."""
    names = [name for name, _ in settings.nodes]
    leaves = [names[at : at + NODES_PER_SWITCH] for at in range(0, len(names), NODES_PER_SWITCH)]
    lines = [
        f"SwitchName=leaf{index} Nodes={','.join(leaf)}" for index, leaf in enumerate(leaves, 1)
    ]
    switches = ",".join(f"leaf{index}" for index in range(1, len(leaves) + 1))
    lines.append(f"SwitchName=spine Switches={switches}")
    return "\n".join(lines) + "\n"


def all_files(settings: SlurmSettings) -> dict[str, str]:
    """Name and text of every file in /etc/slurm."""
    return {
        "slurm.conf": slurm_conf(settings),
        "gres.conf": gres_conf(settings),
        "cgroup.conf": cgroup_conf(settings),
        "topology.conf": topology_conf(settings),
    }
