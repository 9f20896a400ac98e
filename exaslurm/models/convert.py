"""Building a model directory: converted, copied or fetched. Runs where torch is, on demand."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from exaslurm.errors import ModelError

Dtype = Literal["bfloat16", "float16", "float32"]

# In a hub repository beside the weights that an engine loads: the same in other formats.
_OTHER_FORMATS = ["*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth",
                  "onnx/*", "openvino/*", "original/*"]  # fmt: skip


def versions(*names: str) -> dict[str, str]:
    """Versions of the installed distributions among ``names``."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def from_gguf(gguf: Path, directory: Path, dtype: Dtype) -> dict[str, str]:
    """Dequantise a GGUF file into safetensors with config, tokenizer and chat template.

    Takes about 20 s and 1 GB for a model of 135 M parameters. Returns the versions of the
    converters. Needs torch, transformers 5, accelerate and gguf.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(
            f"cannot convert {gguf.name}: it needs torch, transformers, accelerate and gguf",
            remedy="pip install 'exaslurm[models]' in the node's environment",
        ) from error
    parent, name = str(gguf.parent), gguf.name
    try:
        with stdout_to_stderr():
            model = AutoModelForCausalLM.from_pretrained(
                parent,
                gguf_file=name,
                # Left packed, the weights cannot be saved as safetensors.
                quantization_config=GgufConfig(dequantize=True),
            )
            # Engines would look for quantised weights if the config still named them.
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.to(getattr(torch, dtype)).save_pretrained(directory)
            AutoTokenizer.from_pretrained(parent, gguf_file=name).save_pretrained(directory)
    except Exception as error:  # whatever a converter finds wrong with a file
        raise ModelError(f"{gguf} cannot be converted: {type(error).__name__}") from error
    return versions("torch", "transformers", "gguf")


def from_directory(source: Path, directory: Path) -> dict[str, str]:
    """Copy a model directory (links are followed)."""
    try:
        shutil.copytree(source, directory, dirs_exist_ok=True, ignore=_hidden)
    except (OSError, shutil.Error) as error:
        raise ModelError(f"cannot copy {source} to {directory}") from error
    return {}


def from_hub(repository: str, revision: str, directory: Path) -> dict[str, str]:
    """Fetch a Hugging Face repository. What an earlier attempt left in ``directory`` is used.

    Honours the hub's own variables (``HF_TOKEN``, ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``).
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelError(
            f"cannot fetch {repository}: huggingface_hub is not installed",
            remedy="pip install 'exaslurm[models]', or give the model as source: {path: ...}",
        ) from error
    try:
        with stdout_to_stderr():
            fetch = functools.partial(
                huggingface_hub.snapshot_download,
                repository,
                revision=revision,
                local_dir=directory,
            )
            fetch(ignore_patterns=[*_OTHER_FORMATS, "*.bin"])
            if not any(directory.rglob("*.safetensors")):
                fetch(ignore_patterns=_OTHER_FORMATS)
    except Exception as error:  # the hub client raises its own, requests' and OS errors
        raise ModelError(
            f"cannot fetch {repository} (revision {revision}) from the hub",
            remedy="compute nodes often have no way out: fetch it on a login node with "
            "`hf download`, and give that directory as source: {path: ...}",
        ) from error
    shutil.rmtree(directory / ".cache", ignore_errors=True)
    return versions("huggingface-hub")


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Libraries talk on stdout, where the caller's result goes: send that to stderr instead."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _hidden(directory: str, names: list[str]) -> set[str]:
    del directory
    return {name for name in names if name.startswith(".")}
