"""``import exaslurm`` and ``exaslurm --help`` load nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "ray", "vllm", "numpy", "jinja2", "pydantic", "submitit", "starlette", "aiohttp"}

PROBE = """
import json, sys
{code}
print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))
"""

HELP = """
import contextlib, io
sys.argv = ["exaslurm", "--help"]
talk = io.StringIO()
with contextlib.redirect_stdout(talk), contextlib.suppress(SystemExit):
    from exaslurm.cli.main import main
    main()
assert "submit" in talk.getvalue(), talk.getvalue()
"""


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after running ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", ["import exaslurm", HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded(code: str) -> None:
    assert loaded_by(code) & HEAVY == set()


def test_a_heavy_module_would_be_noticed() -> None:
    assert "pydantic" in loaded_by("import pydantic")
