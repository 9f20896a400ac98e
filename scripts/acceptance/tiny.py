"""A model that real vLLM loads at once, for lines that are about the path and not the answers."""

from __future__ import annotations

from acceptance.lab import ROOT, Lab
from acceptance.runner import Line

PATH = "/exa/shared/scratch/exa1/tiny-llama"


def tiny_model(line: Line, lab: Lab, *, layers: int = 2) -> str:
    """The directory of a tiny random llama on the lab's shared file system."""
    path = PATH if layers == 2 else f"{PATH}-{layers}"
    if lab.sh(f"test -s {path}/model.safetensors -a -s {path}/tokenizer.json").returncode:
        program = (ROOT / "tests/tools/tiny_model.py").read_text()
        words = (f"{lab.env}/bin/python", "-", path, str(layers))
        made = lab.on("login", *words, text=program, timeout_s=300)
        line.ran("a tiny model for real vLLM", made)
    return path
