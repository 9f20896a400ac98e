"""Options that the installed vLLM has, from its own help."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exaslurm.engines.options import complaint, known_options, long_options
from tests.engines.test_vllm import build, make_plan

# The layout of vLLM 0.32's `vllm serve --help=all`.
HELP = """\
usage: vllm serve [model_tag] [options]

positional arguments:
  model_tag             The model tag to serve (default: None)

options:
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many. Not with --grpc-port or --uds-only.
  --enforce-eager, --no-enforce-eager
                        Whether to always use eager-mode PyTorch.
  --host HOST           Host name. See --root-path. (default: None)
  -h, --help            show this help message and exit
  --max-model-len MAX_MODEL_LEN
                        Examples:
                        - 1k -> 1000
  --compilation-config COMPILATION_CONFIG, -cc COMPILATION_CONFIG
"""
KNOWN = frozenset(
    {"--api-server-count", "--enforce-eager", "--no-enforce-eager", "--host", "--help",
     "--max-model-len", "--compilation-config"}
)  # fmt: skip


def test_only_options_are_taken_from_the_help() -> None:
    assert known_options(HELP) == KNOWN


def test_spellings() -> None:
    argv = ["serve", "m", "--max_model_len=5", "-O3", "--compilation-config.level", "3", "-1",
            "--host", "--", "--not-an-option"]  # fmt: skip
    assert long_options(argv) == ["--max-model-len", "--compilation-config", "--host"]


@pytest.mark.parametrize(
    ("option", "hint"),
    [("--max-model-length", "; did you mean --max-model-len?"), ("--swap-space", "")],
)
def test_an_unknown_option_is_named_with_its_neighbour(option: str, hint: str) -> None:
    text = complaint(["--host", "h", option, "1"], KNOWN, "0.32.0")
    assert text == f"vLLM 0.32.0 has no option {option}{hint}"


def test_known_options_are_fine() -> None:
    assert complaint(["--host", "h", "--no-enforce-eager"], KNOWN, "0.32.0") is None


@pytest.mark.vllm
@pytest.mark.timeout(240)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_installed_vllm_has_all_that_we_give(device: str) -> None:
    command = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env")) / "bin" / "vllm"
    done = subprocess.run(
        [command, "serve", "--help=all"], capture_output=True, text=True, timeout=200, check=True
    )
    known = known_options(done.stdout)
    assert len(known) > 200
    assert complaint(build(make_plan(device=device, tensor=2)).argv, known, "x") is None
    assert complaint(build(make_plan(device=device)).argv, known, "x") is None
