"""The GPUs that the step may use: which ones Slurm says, what they are the topology says."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import Gpu

# Slurm sets one of these in a step that has GPUs: the vendor's own with AutoDetect, else all of
# them (gres.conf, "Flags": nvidia_gpu_env, amd_gpu_env, ...).
VISIBLE = (
    ("CUDA_VISIBLE_DEVICES", "nvidia"),
    ("ROCR_VISIBLE_DEVICES", "amd"),
    ("HIP_VISIBLE_DEVICES", "amd"),
    ("GPU_DEVICE_ORDINAL", "amd"),
    ("ZE_AFFINITY_MASK", "intel"),
)
_ROCR = "ROCR_VISIBLE_DEVICES"
# They name GPUs of the node, not places in a list that the step sees: the last resort.
GRANTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def visible_ids(
    environ: Mapping[str, str], vendors: Collection[str] = ()
) -> tuple[tuple[str, ...], str | None]:
    """(ids that the step may use, vendor if the variable tells). ``vendors`` are those whose GPUs
    the node has (empty: nobody knows): the others' variables mean nothing."""
    for variable, vendor in VISIBLE:
        ids = _ids(environ.get(variable, ""))
        if ids and (not vendors or vendor in vendors):
            return (_of_list(ids, environ), vendor) if variable == _ROCR else (ids, vendor)
    for variable in GRANTED:
        ids = _ids(environ.get(variable, ""))
        if ids:
            return ids, None
    return (), None


def gpus(
    environ: Mapping[str, str], all_gpus: Sequence[Gpu], accessible: Sequence[Gpu] | None = None
) -> tuple[GpuFact, ...]:
    """GPUs of the step. ``all_gpus`` are the node's; ``accessible`` those that the drivers let
    this process use, in the drivers' order (None: no driver was asked)."""
    ids, vendor = visible_ids(environ, {gpu.vendor for gpu in all_gpus})
    if not ids:
        return ()
    if vendor is None:
        vendor = all_gpus[0].vendor if all_gpus else "nvidia"
    return tuple(
        _fact(name, vendor, found)
        for name, found in zip(ids, _found(environ, ids, vendor, all_gpus, accessible), strict=True)
    )


def _of_list(ids: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """HIP counts what ROCR_VISIBLE_DEVICES leaves: the GPUs that are in both lists, by the numbers
    of the outer one, which engines get as the only one."""
    inner = _ids(environ.get("HIP_VISIBLE_DEVICES", ""))
    if inner and all(name.isdigit() and int(name) < len(ids) for name in inner):
        return tuple(ids[int(name)] for name in inner)
    return ids


def _found(
    environ: Mapping[str, str],
    ids: Sequence[str],
    vendor: str,
    all_gpus: Sequence[Gpu],
    accessible: Sequence[Gpu] | None,
) -> list[Gpu | None]:
    """The GPU that each id means. Where Slurm constrains devices, the numbers of the visible list
    count what is accessible, and ``SLURM_STEP_GPUS`` has the node's own numbers."""
    mine = [gpu for gpu in all_gpus if gpu.vendor == vendor]
    usable = [gpu for gpu in accessible or () if gpu.vendor == vendor]
    if vendor == "intel":
        return [_tile(name, usable or mine, environ) for name in ids]
    if not usable:
        usable = mine
        granted = next(filter(None, (_ids(environ.get(name, "")) for name in GRANTED)), ())
        if len(granted) == len(ids) and all(name.isdigit() for name in (*granted, *ids)):
            ids = granted
    return [_named(name, usable, mine) for name in ids]


def _tile(name: str, usable: Sequence[Gpu], environ: Mapping[str, str]) -> Gpu | None:
    """The card that ``1``, ``1.0`` or the number of a tile belongs to, with the memory of what is
    named. Unless told otherwise (``ZE_FLAT_DEVICE_HIERARCHY``), Level Zero counts tiles."""
    card, dot, _ = name.partition(".")
    flat = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "COMPOSITE"
    if flat and not dot:
        usable = [gpu for gpu in usable for _ in range(gpu.tiles or 1)]
    if not card.isdigit() or int(card) >= len(usable):
        return None
    gpu = usable[int(card)]
    if gpu.mem_mib is None or not (flat or dot):
        return gpu
    return dataclasses.replace(gpu, mem_mib=gpu.mem_mib // (gpu.tiles or 1))


def _named(name: str, usable: Sequence[Gpu], mine: Sequence[Gpu]) -> Gpu | None:
    if name.isdigit():
        return usable[int(name)] if int(name) < len(usable) else None
    return next((gpu for gpu in (*usable, *mine) if (gpu.uuid or "").startswith(name)), None)


def _fact(name: str, vendor: str, gpu: Gpu | None) -> GpuFact:
    if gpu is None:
        return GpuFact(visible_id=name, vendor=vendor)
    return GpuFact(
        visible_id=name,
        vendor=vendor,
        uuid=gpu.uuid,
        pci=gpu.pci,
        numa=gpu.numa,
        name=gpu.name,
        mem_mib=gpu.mem_mib,
    )


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
