"""Environment that gives an engine its GPUs, per vendor."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.plan import Device

# Exactly one of these may be set: vLLM and Ray refuse, or count wrongly, where two are
# (CUDA and ROCR on AMD machines, where Slurm sets ROCR_VISIBLE_DEVICES).
VISIBLE_DEVICES: dict[Device, str] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}
ALL_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)


def device_env(device: Device, gpus: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(variables to set, variables to unset) so that the engine sees its GPUs and no others."""
    own = VISIBLE_DEVICES.get(device)
    unset = tuple(name for name in ALL_VISIBLE if name != own)
    if own is None:
        return {}, unset
    env = {own: ",".join(gpus)}
    if device == "cuda":
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # numbers as nvidia-smi and Slurm count
    return env, unset
