"""GPUs: which ones by Slurm's variables, what they are by the node's topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import Gpu
from exaslurm.facts.gpus import gpus, visible_ids
from exaslurm.topo.node import read_node

A100 = tuple(
    Gpu(index=i, vendor="nvidia", uuid=f"GPU-{letter * 2}", pci=f"0000:{bus}:00.0", numa=i,
        name="A100", mem_mib=81920)
    for i, (letter, bus) in enumerate(zip("abcd", ("17", "65", "ca", "e3"), strict=True))
)  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ((), None)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (("0", "1"), "nvidia")),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ((), None)),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "0-2,5"}, (("0", "1", "2", "5"), None)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a-2b,MIG-3c"}, (("GPU-1a-2b", "MIG-3c"), "nvidia")),
        ({"ROCR_VISIBLE_DEVICES": "3"}, (("3",), "amd")),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1"}, (("6",), "amd")),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "4,6"}, (("4", "6"), "amd")),
        ({"HIP_VISIBLE_DEVICES": "1"}, (("1",), "amd")),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, (("0.0", "0.1"), "intel")),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, (("1",), None)),
    ],
)
def test_which(environ: dict[str, str], expected: object) -> None:
    assert visible_ids(environ) == expected


def test_only_the_variable_of_the_vendor_that_is_there_counts() -> None:
    everything = {
        "CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "0",
    }  # fmt: skip
    gcd = Gpu(index=0, vendor="amd", pci="0000:c1:00.0", numa=3)
    (fact,) = gpus(everything, [gcd])
    assert (fact.vendor, fact.pci) == ("amd", "0000:c1:00.0")


def test_a_number_and_a_uuid_mean_the_same_gpu() -> None:
    by_index, by_uuid = (
        gpus({"CUDA_VISIBLE_DEVICES": name}, A100, A100) for name in ("1", "GPU-bb")
    )
    assert by_index == (
        GpuFact(visible_id="1", vendor="nvidia", uuid="GPU-bb", pci="0000:65:00.0", numa=1,
                name="A100", mem_mib=81920),
    )  # fmt: skip
    assert by_uuid[0].pci == by_index[0].pci
    assert by_uuid[0].visible_id == "GPU-bb"


@pytest.mark.parametrize(
    ("environ", "accessible", "uuids"),
    [
        # Devices are constrained: the driver shows two of four, the numbers count these.
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3"}, A100[2:], ["GPU-cc", "GPU-dd"]),
        # They are, but no driver's library is there to ask: Slurm's own numbers.
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3"}, None, ["GPU-cc", "GPU-dd"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "SLURM_JOB_GPUS": "1-2"}, None, ["GPU-bb", "GPU-cc"]),
        # A list within the step's own: no longer Slurm's.
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "0-3"}, None, ["GPU-bb"]),
        # They are not.
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3"}, A100, ["GPU-cc", "GPU-dd"]),
        ({"CUDA_VISIBLE_DEVICES": "7"}, A100, [None]),
    ],
)
def test_numbers_count_what_the_step_may_use(
    environ: dict[str, str], accessible: tuple[Gpu, ...] | None, uuids: list[str | None]
) -> None:
    assert [gpu.uuid for gpu in gpus(environ, A100, accessible)] == uuids


MAX_1550 = tuple(
    Gpu(index=i, vendor="intel", pci=pci, tiles=2, mem_mib=131072)
    for i, pci in enumerate(("0000:18:00.0", "0000:6c:00.0"))
)


@pytest.mark.parametrize(
    ("mask", "hierarchy", "expected"),
    [
        # Level Zero counts tiles unless it is told otherwise.
        ("0,1,2,3", None, [("18", 65536), ("18", 65536), ("6c", 65536), ("6c", 65536)]),
        ("3", "FLAT", [("6c", 65536)]),
        ("1", "COMPOSITE", [("6c", 131072)]),
        ("0.1,1.0", "COMPOSITE", [("18", 65536), ("6c", 65536)]),
        ("4", None, [(None, None)]),
    ],
)
def test_tiles_of_intel_gpus(
    mask: str, hierarchy: str | None, expected: list[tuple[str | None, int | None]]
) -> None:
    environ = {"ZE_AFFINITY_MASK": mask}
    if hierarchy is not None:
        environ["ZE_FLAT_DEVICE_HIERARCHY"] = hierarchy
    found = gpus(environ, MAX_1550)
    assert [((gpu.pci or "")[5:7] or None, gpu.mem_mib) for gpu in found] == expected
    assert [gpu.visible_id for gpu in found] == mask.split(",")


def test_the_bus_tells_where_there_is_no_driver_library(sys: Path, proc: Path) -> None:
    drivers = read_node(sys, proc)
    found = gpus({"ROCR_VISIBLE_DEVICES": "0,1"}, drivers.topology.gpus, drivers.accessible)
    assert found == (
        GpuFact(visible_id="0", vendor="amd", uuid="9f4c", pci="0000:c1:00.0", numa=0,
                name="Instinct MI250X", mem_mib=65520),
        GpuFact(visible_id="1", vendor="amd", pci="0000:d1:00.0", numa=1),
    )  # fmt: skip


def test_gpus_that_only_slurm_knows() -> None:
    assert gpus({"SLURM_JOB_GPUS": "0,1"}, ()) == (
        GpuFact(visible_id="0", vendor="nvidia"),
        GpuFact(visible_id="1", vendor="nvidia"),
    )


def test_no_gpus_are_asked_for() -> None:
    assert gpus({}, A100, A100) == ()
