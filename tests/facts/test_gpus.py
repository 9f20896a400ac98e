"""GPUs: which ones by Slurm's variables, what they are by the driver or the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.facts import GpuFact
from exaslurm.facts.gpus import Card, gpus, visible_ids

A100 = [
    Card(index=0, vendor="nvidia", uuid="GPU-aa", pci="0000:17:00.0", numa=0, name="A100",
         mem_mib=81920),
    Card(index=1, vendor="nvidia", uuid="GPU-bb", pci="0000:65:00.0", numa=1, name="A100",
         mem_mib=81920),
]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ((), None)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (("0", "1"), "nvidia")),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ((), None)),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "0-2,5"}, (("0", "1", "2", "5"), None)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a-2b,MIG-3c"}, (("GPU-1a-2b", "MIG-3c"), "nvidia")),
        ({"ROCR_VISIBLE_DEVICES": "3"}, (("3",), "amd")),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, (("0.0", "0.1"), "intel")),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, (("1",), None)),
    ],
)
def test_which(environ: dict[str, str], expected: object) -> None:
    assert visible_ids(environ) == expected


def test_the_driver_completes_them() -> None:
    by_index, by_uuid = (
        gpus({"CUDA_VISIBLE_DEVICES": name}, driver=lambda: A100) for name in ("1", "GPU-bb")
    )
    assert by_index == (
        GpuFact(visible_id="1", vendor="nvidia", uuid="GPU-bb", pci="0000:65:00.0", numa=1,
                name="A100", mem_mib=81920),
    )  # fmt: skip
    assert by_uuid[0].pci == by_index[0].pci
    assert by_uuid[0].visible_id == "GPU-bb"


def test_the_bus_tells_where_there_is_no_driver_library(sys: Path) -> None:
    found = gpus({"ROCR_VISIBLE_DEVICES": "0,1"}, sys=sys)
    assert found == (
        GpuFact(visible_id="0", vendor="amd", uuid="9f4c", pci="0000:c1:00.0", numa=0,
                name="Instinct MI250X", mem_mib=65520),
        GpuFact(visible_id="1", vendor="amd", pci="0000:d1:00.0", numa=1),
    )  # fmt: skip


def test_gpus_that_only_slurm_knows(tmp_path: Path) -> None:
    found = gpus({"SLURM_JOB_GPUS": "0,1"}, sys=tmp_path)
    assert found == (
        GpuFact(visible_id="0", vendor="nvidia"),
        GpuFact(visible_id="1", vendor="nvidia"),
    )


def test_no_gpus_are_asked_for_no_driver(tmp_path: Path) -> None:
    def driver() -> list[Card]:
        raise AssertionError("asked")

    assert gpus({}, sys=tmp_path, driver=driver) == ()
