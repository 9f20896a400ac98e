"""Which threads of a user's processes wait for the shared file system; prints them as JSON.

Argument: {"uid", "seconds"}. For every process that was seen: what it is, its command line, how
many of its threads waited at once at most, and their names. To be run as root, who may see where a
thread waits in the kernel.
"""

import json
import sys
import time
from pathlib import Path

# What a process is, by a word of its command line.
KINDS = (
    ("exaslurm.engines.simulated", "engine"),
    ("exaslurm.gateway", "router"),
    ("exaslurm.supervisor", "supervisor"),
    ("exaslurm.controller", "controller"),
    ("exaslurm.agent", "agent"),
    ("exaslurm.bootstrap.init", "init"),
    ("exaslurm.bootstrap.launch", "batch script"),
)
# Functions of the kernel in which somebody waits for a FUSE server.
WORDS = ("fuse_", "request_wait_answer")


def waits(thread: Path) -> bool:
    for name in ("stack", "wchan"):
        try:
            text = (thread / name).read_text()
        except OSError:
            continue
        if any(word in text for word in WORDS):
            return True
    return False


def main(given: dict) -> None:
    found: dict = {}
    states: dict = {}
    deadline = time.monotonic() + given["seconds"]
    looks = 0
    while time.monotonic() < deadline:
        looks += 1
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                if process.stat().st_uid != given["uid"]:
                    continue
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                threads = list((process / "task").iterdir())
            except OSError:
                continue  # it has ended
            kind = next((kind for word, kind in KINDS if word in words), None)
            if kind is None:
                continue
            waiting = [thread for thread in threads if waits(thread)]
            entry = found.setdefault(process.name, {"kind": kind, "most": 0, "names": []})
            entry["most"] = max(entry["most"], len(waiting))
            for thread in waiting:
                try:
                    name = (thread / "comm").read_text().strip()
                    state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                states[state] = states.get(state, 0) + 1
                if name not in entry["names"]:
                    entry["names"].append(name)
        time.sleep(0.5)
    print(json.dumps({"processes": found, "looks": looks, "states": states}))


main(json.loads(sys.argv[1]))
