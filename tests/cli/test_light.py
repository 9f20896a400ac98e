"""The command line answers at once."""

from __future__ import annotations

import subprocess
import sys
import time

LIMIT_S = 0.15


def test_help_takes_little_time() -> None:
    """Best of five: the machine may be busy, the program must not be."""
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "exaslurm", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        took.append(time.perf_counter() - begin)
    assert min(took) < LIMIT_S, f"{min(took):.3f} s"


def test_help_loads_none_of_the_heavy_modules() -> None:
    heavy = {"torch", "ray", "vllm", "numpy", "jinja2", "pydantic", "starlette", "uvicorn"}
    heavy |= {"aiohttp", "yaml", "rich", "asyncio"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "exaslurm", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "click" in loaded
    assert loaded & heavy == set()
