"""The GPUs that the step may use: which ones Slurm says, what they are the driver says."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exaslurm.core.facts import GpuFact
from exaslurm.facts.sysfs import SYS, pci_numa, read

log = logging.getLogger(__name__)

# Slurm sets one of these in a step that has GPUs (by gres.conf's AutoDetect or File type).
VISIBLE = (
    ("CUDA_VISIBLE_DEVICES", "nvidia"),
    ("HIP_VISIBLE_DEVICES", "amd"),
    ("ROCR_VISIBLE_DEVICES", "amd"),
    ("GPU_DEVICE_ORDINAL", "amd"),
    ("ZE_AFFINITY_MASK", "intel"),
)
# They name GPUs of the node, not places in a list that the step sees: the last resort.
GRANTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")

_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A GPU as the driver or the PCI bus shows it; ``index`` is its place among its kind."""

    index: int
    vendor: str
    uuid: str | None = None
    pci: str | None = None
    numa: int | None = None
    name: str | None = None
    mem_mib: int | None = None


def visible_ids(environ: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """(ids that the step may use, vendor if the variable tells)."""
    for variable, vendor in VISIBLE:
        ids = _ids(environ.get(variable, ""))
        if ids:
            return ids, vendor
    for variable in GRANTED:
        ids = _ids(environ.get(variable, ""))
        if ids:
            return ids, None
    return (), None


def gpus(
    environ: Mapping[str, str],
    *,
    sys: Path = SYS,
    driver: Callable[[], Sequence[Card]] | None = None,
) -> tuple[GpuFact, ...]:
    """GPUs of the step. ``driver`` lists the node's cards (default: NVML, then the PCI bus)."""
    ids, vendor = visible_ids(environ)
    if not ids:
        return ()
    cards = list(driver() if driver is not None else nvml_cards(sys) or pci_cards(sys))
    if vendor is None:
        vendor = cards[0].vendor if cards else "nvidia"
    return tuple(_fact(name, vendor, cards) for name in ids)


def nvml_cards(sys: Path = SYS) -> list[Card]:
    """NVIDIA's own list; empty where the library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # ImportError, NVMLError of many kinds, OSError of ctypes
        log.debug("no NVML: %s", error)
        return []
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            # NVML writes an eight-digit domain, sysfs a four-digit one.
            pci = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                Card(
                    index=index,
                    vendor="nvidia",
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    pci=pci,
                    numa=pci_numa(pci, sys),
                    name=_text(pynvml.nvmlDeviceGetName(handle)),
                    mem_mib=int(memory.total) >> 20,
                )
            )
    except Exception as error:
        log.warning("NVML does not describe the GPUs: %s", error)
    finally:
        pynvml.nvmlShutdown()
    return found


def pci_cards(sys: Path = SYS) -> list[Card]:
    """GPUs on the PCI bus, numbered by bus address within their vendor."""
    found: list[Card] = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        vendor = _PCI_VENDORS.get(read(device / "vendor") or "")
        display = (read(device / "class") or "")[:6]
        # A server's boot display (0x0300 without a GPU driver) is not an accelerator.
        driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
        if vendor is None or display not in _DISPLAY_CLASSES:
            continue
        if driver not in ("nvidia", "amdgpu", "i915", "xe"):
            continue
        memory = read(device / "mem_info_vram_total")
        found.append(
            Card(
                index=sum(card.vendor == vendor for card in found),
                vendor=vendor,
                uuid=read(device / "unique_id"),
                pci=device.name,
                numa=pci_numa(device.name, sys),
                name=read(device / "product_name") or None,
                mem_mib=int(memory) >> 20 if memory and memory.isdigit() else None,
            )
        )
    return found


def _fact(name: str, vendor: str, cards: Sequence[Card]) -> GpuFact:
    for card in cards:
        is_it = card.vendor == vendor and (
            str(card.index) == name or (card.uuid or "").startswith(name)
        )
        if is_it:
            return GpuFact(
                visible_id=name,
                vendor=vendor,
                uuid=card.uuid,
                pci=card.pci,
                numa=card.numa,
                name=card.name,
                mem_mib=card.mem_mib,
            )
    return GpuFact(visible_id=name, vendor=vendor)


def _ids(text: str) -> tuple[str, ...]:
    """``0,1``, ``0-3`` (Slurm) or ``GPU-<uuid>``; ``NoDevFiles`` is Slurm's word for none."""
    found: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        first, dash, last = part.partition("-")
        if first.isdigit() and dash and last.isdigit():
            found.extend(str(number) for number in range(int(first), int(last) + 1))
        elif part and part not in ("NoDevFiles", "void", "none", "-1"):
            found.append(part)
    return tuple(found)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
