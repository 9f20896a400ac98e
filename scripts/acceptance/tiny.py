"""A model that real vLLM loads at once, for lines that are about the path and not the answers."""

from __future__ import annotations

from acceptance.lab import ROOT, Lab
from acceptance.runner import Line

PATH = "/exa/shared/scratch/exa1/tiny-llama"


def tiny_model(line: Line, lab: Lab) -> str:
    """The directory of a tiny random llama on the lab's shared file system."""
    if lab.sh(f"test -s {PATH}/model.safetensors -a -s {PATH}/tokenizer.json").returncode:
        program = (ROOT / "tests/tools/tiny_model.py").read_text()
        made = lab.on("login", f"{lab.env}/bin/python", "-", PATH, text=program, timeout_s=300)
        line.ran("a tiny model for real vLLM", made)
    return PATH
