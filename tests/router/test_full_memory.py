"""Shared memory that is full, from the start or later: a router counts alone then, and lives."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

SHARE = """
import sys
from pathlib import Path
from exaslurm.errors import StateError
from exaslurm.router.loads import NO_SLOT, Loads, loads_path
from exaslurm.router.quotas import SharedQuotas

def fill():
    with open("/dev/shm/rest", "wb", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError:
            pass

if sys.argv[1] == "before":
    fill()
try:
    loads, quotas = Loads.open(loads_path("a")), SharedQuotas.open("a")
except StateError as error:
    print("refused:", error)
    sys.exit()
fill()
for slot in loads.retain(map(str, range(NO_SLOT))).values():
    loads.mine[slot] = 1
print(sum(loads.others()))
for key in range(200):
    cells, at = quotas.join(str(key))
    cells[at] = cells[at + 1] = 1.0
    quotas.publish(str(key), 1)
    quotas.elsewhere(str(key))
quotas.close()
loads.close()
print("fine")
"""


def share(size_kib: int, when: str) -> subprocess.CompletedProcess[str]:
    """Run SHARE with a /dev/shm of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare(1) here")
    mount = f"mount -t tmpfs -o size={size_kib}k none /dev/shm"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True, timeout=20).returncode:
        pytest.skip("no mounts in a namespace of one's own here")
    return subprocess.run(
        [*inside, f'{mount} && exec "$@"', "sh", sys.executable, "-c", SHARE, when],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_memory_that_becomes_full_later_kills_nobody() -> None:
    done = share(4096, "after")
    assert (done.returncode, done.stdout.split()) == (0, ["0", "fine"]), done.stderr


@pytest.mark.parametrize("size_kib", [4, 64, 256, 512, 700])
@pytest.mark.parametrize("when", ["before", "after"])
def test_memory_that_is_full_is_an_error_of_the_tree(size_kib: int, when: str) -> None:
    done = share(size_kib, when)
    assert done.returncode == 0, done.stderr
    assert "refused: cannot" in done.stdout or "fine" in done.stdout
    if when == "before":
        assert "No space left on device" in done.stdout
