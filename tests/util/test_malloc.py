"""Options of the C library's memory."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from exaslurm.util.malloc import Option, set_malloc
if sys.argv[1] == "one":
    set_malloc({Option.ARENA_MAX: 1})
def arenas():
    # Each arena beyond the first is a mapping of 64 MiB, of which little is in use.
    found = set()
    for line in open("/proc/self/maps"):
        first = int(line.split("-")[0], 16)
        if first % (64 << 20) == 0 and len(line.split()) == 5:
            found.add(first)
    return len(found)
before = arenas()
ready, go = threading.Barrier(9), threading.Event()
def work():
    kept = [bytearray(5000) for _ in range(100)]
    ready.wait()
    go.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
ready.wait()
print(arenas() - before)
go.set()
"""


def new_arenas(word: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_threads_share_one_arena() -> None:
    assert new_arenas("one") == 0
    assert new_arenas("as it is") > 0
