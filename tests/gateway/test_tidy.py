"""What killed processes leave, and what living ones use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exaslurm.gateway.tidy import tidy
from exaslurm.router.loads import Loads
from exaslurm.router.quotas import SharedQuotas
from exaslurm.util import hostdir
from exaslurm.util.hostdir import host_dir
from exaslurm.util.process import start_ticks

KILLED = """
import os, signal, sys
from exaslurm.router.loads import Loads, loads_path
from exaslurm.router.quotas import SharedQuotas
from exaslurm.util import hostdir
hostdir._PARENTS = (sys.argv[1],)
kept = Loads.open(loads_path("killed"), ["a"]), SharedQuotas.open("killed")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_only_what_nobody_uses_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostdir, "_PARENTS", (str(tmp_path),))
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=30)
    left = {path.name.split("-")[0] for path in host_dir().iterdir()}
    assert left == {"loads", "quotas"}
    me = f"{os.getpid()}-{start_ticks(os.getpid())}"
    for name in (f"router-x-{me}", "router-x-1-1", "router-x-1"):
        (host_dir() / name).touch()
    for name in (f"figures-{me}", "figures-1-1"):
        (host_dir() / name).mkdir()
        (host_dir() / name / "1-1-x").touch()
    (host_dir() / "something-else").touch()
    with (
        contextlib.closing(Loads.open(host_dir() / "loads-mine", ["a"])),
        contextlib.closing(SharedQuotas.open("mine")),
    ):
        used = {path.name for path in host_dir().iterdir()}
        tidy()
        gone = used - {path.name for path in host_dir().iterdir()}
        # Quotas hold for their minute, whoever dies.
        assert sorted(name.split("-")[0] for name in gone) == [
            "figures", "loads", "loads", "router", "router",
        ]  # fmt: skip
        assert {"figures-1-1", "router-x-1-1", "router-x-1"} < gone
        long_ago = time.time() - 7200
        for path in host_dir().glob("quotas-*"):
            os.utime(path, (long_ago, long_ago))
        tidy()
        assert len(list(host_dir().glob("quotas-*"))) == 1
        assert len(list(host_dir().glob("loads-*"))) == 2
