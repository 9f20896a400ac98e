"""Faults that a test cannot put into this machine, planted in recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.trees import LIMITS, Recorded


@pytest.fixture
def recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Recorded:
    return Recorded(tmp_path, monkeypatch, capsys)


def found(recorded: Recorded, *expected: str) -> dict[str, str]:
    """Values of the checks of n2 that did not pass, by identifier and subject. Those named
    ``expected`` and no others failed, all have a remedy, and n1 and n3 are fine."""
    code, report = recorded.doctor()
    bad = [check for check in report["n2"] if check["outcome"] in ("warn", "fail")]
    assert {check["id"] for check in bad if check["outcome"] == "fail"} == set(expected)
    assert all(check["remedy"] for check in bad)
    for host in ("n1", "n3"):
        assert [check for check in report[host] if check["outcome"] in ("warn", "fail")] == []
    assert {check["id"] for check in report["n2"]} >= {"numa.map", "limits.nofile", "net.mtu"}
    assert code == (6 if expected else 0)
    return {f"{check['id']} {check['subject']}".strip(): check["value"] for check in bad}


def test_nodes_without_a_fault(recorded: Recorded) -> None:
    assert found(recorded) == {}
    _, report = recorded.doctor()
    values = {(c["id"], c["subject"]): c["value"] for c in report["n1"] if c["outcome"] == "pass"}
    assert values["ib.rate", "mlx5_0:1"] == "200 Gb/sec (4X HDR)"
    assert values["gpu.model", ""] == "NVIDIA A100-SXM4-80GB"
    assert values["gpu.driver", ""] == "nvidia 570.86.15"
    assert values["uniform.fabric", ""] == "4 x 200 Gb/s"
    assert values["numa.map", ""] == "node 0: 8 CPUs, 252 GiB; node 1: 8 CPUs, 252 GiB"


def test_another_driver(recorded: Recorded) -> None:
    recorded.nodes["n2"].put(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n",
    )
    value = found(recorded, "uniform.gpu_driver")["uniform.gpu_driver"]
    assert value == "nvidia 535.104.05; nvidia 570.86.15 on 2 other nodes"


def test_another_gpu_model(recorded: Recorded) -> None:
    for index in range(4):
        recorded.nodes["n2"].put(
            f"proc/driver/nvidia/gpus/0000:1{index}:00.0/information",
            "Model:           NVIDIA A100-SXM4-40GB\n",
        )
    value = found(recorded, "uniform.gpu_model")["uniform.gpu_model"]
    assert value == "4 x NVIDIA A100-SXM4-40GB; 4 x NVIDIA A100-SXM4-80GB on 2 other nodes"


def test_a_port_that_is_down(recorded: Recorded) -> None:
    port = "sys/class/infiniband/mlx5_2/ports/1"
    recorded.nodes["n2"].put(f"{port}/state", "1: DOWN\n")
    recorded.nodes["n2"].put(f"{port}/phys_state", "2: Polling\n")
    values = found(recorded, "uniform.fabric")
    assert values["ib.state mlx5_2:1"] == "DOWN, Polling"
    assert values["uniform.fabric"] == "3 x 200 Gb/s; 4 x 200 Gb/s on 2 other nodes"


def test_a_node_that_is_cut_off(recorded: Recorded) -> None:
    for index in range(4):
        recorded.nodes["n2"].put(f"sys/class/infiniband/mlx5_{index}/ports/1/state", "1: DOWN\n")
    values = found(recorded, "ib.state", "uniform.fabric")
    assert values["uniform.fabric"] == "none; 4 x 200 Gb/s on 2 other nodes"


def test_a_link_that_trained_down(recorded: Recorded) -> None:
    rate = "sys/class/infiniband/mlx5_1/ports/1/rate"
    recorded.nodes["n2"].put(rate, "50 Gb/sec (1X HDR)\n")
    values = found(recorded, "ib.rate", "uniform.fabric")
    assert values["ib.rate mlx5_1:1"] == "50 Gb/sec (1X HDR)"


def test_a_python_that_is_too_old(recorded: Recorded) -> None:
    recorded.nodes["n2"].put("opt/env/pyvenv.cfg", "version = 3.9.18\n")
    values = found(recorded, "python.version", "uniform.python")
    assert values["python.version"] == "/opt/env/bin/python is Python 3.9.18"


def test_a_wrong_mtu(recorded: Recorded) -> None:
    recorded.nodes["n2"].put("sys/class/net/ib0/mtu", "2044\n")
    value = found(recorded, "uniform.mtu")["uniform.mtu"]
    assert value == "ib0 2044; ib0 4092 on 2 other nodes"


def test_an_interface_that_is_down(recorded: Recorded) -> None:
    recorded.nodes["n2"].put("sys/class/net/ib0/operstate", "down\n")
    assert found(recorded, "net.interface")["net.interface"] == "ib0: down"


def test_locked_memory_that_is_too_little_for_rdma(recorded: Recorded) -> None:
    low = LIMITS.replace("unlimited            unlimited", "65536                65536    ")
    recorded.nodes["n2"].put("proc/self/limits", low)
    assert found(recorded, "limits.memlock")["limits.memlock"] == "64 KiB"


def test_a_numa_node_without_memory(recorded: Recorded) -> None:
    recorded.nodes["n2"].put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\n")
    value = found(recorded, "numa.map")["numa.map"]
    assert value == "node 0: 8 CPUs, 252 GiB; node 1: 8 CPUs, 0 GiB"


def test_a_gpu_whose_place_nobody_knows_is_a_warning(recorded: Recorded) -> None:
    recorded.nodes["n2"].put("sys/bus/pci/devices/0000:11:00.0/numa_node", "-1\n")
    assert "0000:11:00.0" in found(recorded)["gpu.numa"]


def test_a_directory_that_is_no_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from exaslurm.cli.main import run

    assert run(["doctor", "--root", str(tmp_path)]) == 2
    assert "is no recorded tree" in capsys.readouterr().err
