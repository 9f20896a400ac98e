"""What setup.cfg cannot say: EXASLURM_COMPILE=1 compiles the way of a request through the router.

mypyc makes C of the annotated Python and needs a C compiler and Python's headers. The sources are
installed, too, and are what runs otherwise.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

# All that every request or every chunk of a stream passes. Left as they are: what is Starlette's or
# uvicorn's way, what only time or a page calls, and `fields`, whose limits are exact integers.
_COMPILED = [
    "admission",
    "affinity",
    "answering",
    "audit",
    "blocks",
    "breaker",
    "budget",
    "call",
    "canary",
    "check",
    "choose",
    "ejected",
    "errors",
    "events",
    "exchange",
    "fairness",
    "figures",
    "forms",
    "headers",
    "heads",
    "hedge",
    "held",
    "key_use",
    "metrics",
    "outbox",
    "parse",
    "prefixes",
    "rate",
    "relay",
    "rewrite",
    "ring",
    "router",
    "routes",
    "table",
    "upstream",
    "usage",
    "weights",
]


_COMPILER = "mypy==2.4.1"


def extensions() -> dict[str, Any]:
    if os.environ.get("EXASLURM_COMPILE", "0") in ("", "0"):
        return {}
    # Before it builds, pip asks what a build needs, and what the package is called.
    if {"egg_info", "dist_info"}.intersection(sys.argv):
        return {"setup_requires": [_COMPILER]}
    try:
        from mypyc.build import mypycify
    except ImportError:
        raise SystemExit(
            f"EXASLURM_COMPILE needs {_COMPILER}: install it, or leave out --no-build-isolation"
        ) from None
    # Whether other packages are there, or typed, makes no difference to what comes out.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    paths = [f"exaslurm/router/{name}.py" for name in _COMPILED]
    modules = mypycify([*options, *paths], group_name="exaslurm", debug_level="0")
    return {"ext_modules": modules}


setup(**extensions())
