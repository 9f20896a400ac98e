"""The command line answers at once."""

from __future__ import annotations

import resource
import subprocess
import sys

LIMIT_S = 0.15


def test_help_takes_little_time() -> None:
    """CPU time, best of five: the machine may be busy, the program must not be."""
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "exaslurm", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
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
