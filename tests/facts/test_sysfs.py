"""NUMA nodes and InfiniBand ports of a recorded /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.facts import HcaFact, NumaFact
from exaslurm.facts.sysfs import cpu_list, hcas, numa_nodes, pci_numa


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("", ()), ("5", (5,)), ("0,2", (0, 2))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_list(text) == cpus


def test_numa_nodes(sys: Path) -> None:
    assert numa_nodes(sys) == (
        NumaFact(index=0, cpus=(0, 1, 2, 3, 8, 9, 10, 11), mem_mib=128000),
        NumaFact(index=1, cpus=(4, 5, 6, 7, 12, 13, 14, 15), mem_mib=128000),
    )


def test_ports_of_hcas(sys: Path) -> None:
    assert hcas(sys) == (
        HcaFact(name="mlx5_0", port=1, state="ACTIVE", rate_gbps=200.0,
                link_layer="InfiniBand", numa=0),
        HcaFact(name="mlx5_1", port=1, state="DOWN", rate_gbps=2.5,
                link_layer="Ethernet", numa=None),
    )  # fmt: skip


def test_pci(sys: Path) -> None:
    assert pci_numa("0000:D1:00.0", sys) == 1
    assert pci_numa("0000:03:00.0", sys) is None


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert (numa_nodes(tmp_path), hcas(tmp_path)) == ((), ())
