"""The first process of a host: makes its namespaces and root directory, then reaps orphans.

Run as `python3 holder.py SPEC.json`. Prints `pid N` (as the caller sees it) and, when all is
done, `ready` or `failed: REASON` on stdout. While this process lives the host is powered on;
when it is killed, the kernel ends every process of the host and takes its interface and mounts
away.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from labkit import syscalls

# Where the new root is put together. It exists on every machine, and nothing below it is
# carried over into a host, so mounting on it hides nothing that is needed.
STAGE = "/run"


def make_mount(stage: str, step: dict[str, Any]) -> None:
    """Carry out one step of a mount plan (see mountplan.py) below `stage`."""
    target = stage + step["target"]
    if step["kind"] == "symlink":
        os.symlink(step["source"], target)
        return
    if step["kind"] == "bind":
        if os.path.isdir(step["source"]):
            os.makedirs(target, exist_ok=True)
        syscalls.bind(
            step["source"], target, recursive=step["recursive"], read_only=step["read_only"]
        )
        return
    os.makedirs(target, exist_ok=True)
    syscalls.mount(step["source"], target, step["kind"], 0, step["options"] or None)
    if step["mode"] is not None:
        os.chmod(target, step["mode"])


def become_host(spec: dict[str, Any]) -> None:
    """Set host name and root directory of the calling process, first of its PID namespace."""
    socket.sethostname(spec["hostname"])
    # Without this, what is mounted here would appear on the real machine.
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    if not spec["mounts"]:
        return
    syscalls.mount("exa-root", STAGE, "tmpfs", 0, "mode=755,size=16m")
    for step in spec["mounts"]:
        make_mount(STAGE, step)
    syscalls.pivot_root(STAGE)


def detach_output() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def reap_for_ever() -> None:
    """Wait for children; orphans of the host become ours and would stay zombies otherwise."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main(spec_path: str) -> int:
    spec: dict[str, Any] = json.loads(Path(spec_path).read_text())
    for place in spec["cgroups"]:
        Path(place["root"], "cgroup.procs").write_text("0")
    if spec["cores"]:
        os.sched_setaffinity(0, spec["cores"])
    os.setsid()
    # The cgroup that the process is in at this moment becomes the root of its namespace.
    syscalls.unshare(syscalls.ALL_NAMESPACES)
    for place in spec["cgroups"]:
        Path(place["init"], "cgroup.procs").write_text("0")
    child = os.fork()
    if child:
        # Only the child is in the new PID namespace; this process knows its outer pid.
        print(f"pid {child}", flush=True)
        return 0
    try:
        become_host(spec)
    except OSError as error:
        print(f"failed: {error}", flush=True)
        return 1
    print("ready", flush=True)
    detach_output()
    reap_for_ever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
