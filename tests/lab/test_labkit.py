"""The parts of the lab that need neither root nor Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from labkit import cgroups, chroot, etcdir, layout, mirror, mountplan, network, processes
from labkit import record as records
from labkit.errors import LabError, UsageError
from labkit.layout import LabConfig, Paths
from labkit.slurmconf import (
    WIDE_HARDWARE,
    Hardware,
    SlurmSettings,
    all_files,
    cgroup_conf,
    parse_hardware,
    slurm_conf,
    topology_conf,
)

from tests.lab.kit import LAB

CONFIG = LabConfig("lab", 4, "wide", "/", False)


def settings(profile: str = "wide", version: tuple[int, int] = (22, 5)) -> SlurmSettings:
    nodes = tuple((f"c{number}", f"10.77.0.{10 + number}") for number in range(1, 6))
    return SlurmSettings(
        "lab", profile, version, nodes, ("ctl", "10.77.0.1"), WIDE_HARDWARE, 0, False
    )


def test_cores_are_dealt_round_robin_in_wide_only() -> None:
    hosts = layout.plan_hosts(CONFIG, [0, 1, 2])
    assert [hosts[f"c{number}"].cores for number in range(1, 5)] == [(0,), (1,), (2,), (0,)]
    assert hosts["login"].cores == ()
    real = layout.plan_hosts(LabConfig("lab", 4, "real", "/", False), [0, 1])
    assert {host.cores for host in real.values()} == {()}
    assert len({host.number for host in real.values()}) == 7


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (LabConfig("Lab", 4, "wide", "/", False), "--name"),
        (LabConfig("../x", 4, "wide", "/", False), "--name"),
        (LabConfig("lab", 1, "wide", "/", False), "--nodes 1"),
        (LabConfig("lab", 201, "wide", "/", False), "--nodes 201"),
        (LabConfig("lab", 4, "deep", "/", False), "--profile"),
    ],
)
def test_impossible_labs_are_refused(config: LabConfig, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        config.validate()


def test_differences_name_both_values() -> None:
    other = LabConfig("lab", 6, "wide", "/", True)
    assert CONFIG.differences(other) == [
        "nodes is 4, asked for 6",
        "accounting is False, asked for True",
    ]


def test_slurm_conf_of_wide_and_real() -> None:
    wide = slurm_conf(settings())
    assert "SlurmdParameters=config_overrides" in wide
    assert "TaskPlugin=task/none" in wide
    assert "NodeName=c1 NodeAddr=10.77.0.11 Sockets=2 CoresPerSocket=8" in wide
    assert "PartitionName=gpu Nodes=c2,c3,c4,c5 Default=NO" in wide
    real = slurm_conf(settings("real"))
    assert "config_overrides" not in real
    assert "TaskPlugin=task/affinity,task/cgroup" in real
    assert "ProctrackType=proctrack/cgroup" in real


def test_topology_of_an_odd_number_of_nodes() -> None:
    assert topology_conf(settings()).splitlines() == [
        "SwitchName=leaf1 Nodes=c1,c2",
        "SwitchName=leaf2 Nodes=c3,c4",
        "SwitchName=leaf3 Nodes=c5",
        "SwitchName=spine Switches=leaf1,leaf2,leaf3",
    ]


def test_cgroup_plugin_of_each_version() -> None:
    assert cgroup_conf(settings(version=(22, 5))) == "CgroupPlugin=cgroup/v1\n"
    assert cgroup_conf(settings(version=(24, 11))) == "CgroupPlugin=disabled\n"
    assert set(all_files(settings())) == {
        *("slurm.conf", "gres.conf", "cgroup.conf", "topology.conf"),
    }


def test_hardware_as_slurmd_prints_it() -> None:
    line = (
        "NodeName=vm CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=2 ThreadsPerCore=2 "
        "RealMemory=20000\nUpTime=0-00:10:36\n"
    )
    assert parse_hardware(line) == Hardware(2, 2, 2, 19000)
    assert parse_hardware(line).cpus == 8
    with pytest.raises(KeyError):
        parse_hardware("nothing")


VERSION_1 = """\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
28 25 0:25 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_hierarchies_are_read_from_mountinfo() -> None:
    cpuset, cpuacct, unified = cgroups.parse_mounts(VERSION_1)
    assert (cpuset.version, cpuset.controllers) == (1, ("cpuset",))
    assert str(cpuacct.mount_point) == "/sys/fs/cgroup/cpu,cpuacct"
    assert cpuacct.controllers == ("cpuacct",)
    assert (unified.version, unified.controllers) == (2, ())
    assert cgroups.version([]) == 0


def test_accounts_are_added_to_the_copy_of_etc(tmp_path: Path) -> None:
    root, etc = tmp_path / "root", tmp_path / "etc"
    (root / "etc").mkdir(parents=True)
    own = f"munge:x:{os.getuid()}:{os.getgid()}::/:/bin/false\n"
    for name, text in (("passwd", own), ("group", ""), ("shadow", ""), ("hosts", "1.2.3.4 x\n")):
        (root / "etc" / name).write_text(text)
    (root / "etc/resolv.conf").symlink_to("/run/nowhere")
    hosts = list(layout.plan_hosts(CONFIG, [0]).values())
    etcdir.build(etc, root, 7, hosts, {"slurm.conf": "text"})
    assert "exa1:x:6001:6001:lab user:/exa/shared/home/exa1:/bin/bash" in (
        (etc / "passwd").read_text()
    )
    assert "10.77.7.12 c2" in (etc / "hosts").read_text().splitlines()
    assert "timeout:1 attempts:1" in (etc / "resolv.conf").read_text()
    assert (etc / "slurm/slurm.conf").read_text() == "text"
    assert (etc / "munge/munge.key").stat().st_mode & 0o777 == 0o400
    assert (root / "etc/passwd").read_text() == own


def test_an_account_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("someone:x:6002:100::/:/bin/sh\n")
    with pytest.raises(LabError, match=r"someone \(6002\)"):
        etcdir.build(tmp_path / "new", tmp_path, 0, [], {})


def test_mounts_of_a_host_hide_those_of_the_machine(tmp_path: Path) -> None:
    for name in ("usr", "var", "opt", "tmp", "etc", "proc", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "file").touch()
    steps = mountplan.plan_mounts(Paths.of("lab"), "c1", tmp_path, [], Path("/src/exaslurm"))
    order = [step.target for step in steps]
    assert order.index("/var") < order.index("/var/tmp")
    assert order.index("/dev") < order.index("/dev/shm")
    assert order.index("/exa") < order.index("/exa/local")
    assert order.count("/tmp") == order.count("/run") == order.count("/etc") == 1
    own_tmp = next(step for step in steps if step.target == "/tmp")
    assert own_tmp.source == "/var/lib/exaslurm-lab/lab/hosts/c1/tmp"
    assert "/file" not in order
    tree = next(step for step in steps if step.target == "/src/exaslurm")
    assert tree.read_only


def test_subnets_do_not_collide() -> None:
    assert network.choose_subnet({0, 1, 3}) == 2
    with pytest.raises(LabError, match="no free subnet"):
        network.choose_subnet(set(range(256)))
    assert network.address(3, 11) == "10.77.3.11"


def test_records_survive_a_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LABS_DIR", tmp_path)
    assert records.load("lab") is None
    lab = records.LabRecord(CONFIG, 5, "22.05.8", (0, 1), records.Holder(1, 2))
    lab = lab.with_holder("c1", records.Holder(3, 4, ("/sys/fs/cgroup/x",)))
    lab.paths.state.mkdir()
    lab.save()
    assert records.load("lab") == lab
    lab.paths.record.write_text('{"config": {}}')
    with pytest.raises(LabError, match="another version"):
        records.load("lab")
    lab.paths.record.write_text("{")
    with pytest.raises(LabError, match="not readable"):
        records.load("lab")


def test_a_process_is_known_by_pid_and_start_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = processes.look_up(child.pid)
    assert found is not None
    assert processes.is_alive(found.pid, found.started)
    assert not processes.is_alive(found.pid, found.started + 1)
    processes.end([found], timeout_s=10)
    assert processes.look_up(child.pid) is None
    child.communicate(timeout=10)


ONE_LINE = """\
# deb http://wrong.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian/ bookworm main contrib
"""
STANZAS = """\
Types: deb
# a comment
URIs: https://packages.example/other
Suites: nodistro
Components: main

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb deb-src
URIs: http://stanza.example/debian
Suites: bookworm
 bookworm-updates
Components: main
"""


def test_mirror_is_that_of_apt(tmp_path: Path) -> None:
    assert mirror.debian_mirror(mirror.read_sources(tmp_path)) == mirror.FALLBACK
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(STANZAS)
    found = mirror.debian_mirror(mirror.read_sources(tmp_path))
    assert found == "http://stanza.example/debian"
    (tmp_path / "sources.list").write_text(ONE_LINE)
    assert mirror.debian_mirror(mirror.read_sources(tmp_path)) == "http://mirror.example/debian"


def test_libraries_of_a_program_are_found() -> None:
    found = chroot.needed_libraries([Path("/bin/sh")])
    assert found["libc.so.6"].is_file()


def test_command_line_errors_are_short() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([LAB, *arguments], capture_output=True, text=True, timeout=30)

    assert run("sideways").returncode == 2
    assert run("--help").returncode == 0
    if os.geteuid() == 0:
        missing = run("up", "--slurm", "/no/such/place")
        assert missing.returncode == 4
        assert "scripts/lab chroot /no/such/place" in missing.stderr
        assert run("up", "--nodes", "1", "--name", "never").returncode == 2
    else:
        assert run("up").returncode == 4
        assert "root" in run("up").stderr
