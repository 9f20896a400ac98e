"""What is done to one node: ``python -m exaslurm.chaos.node OP JSON``, there, as the deployment's
user or as root. Prints one JSON object; standard library only. With ``armed`` as a third word it
says ``ready``, and does it when it is told ``go``: the time to get here is not part of a fault.

``find``      the cell's init on this node, and its children
``signal``    send a signal to one of them, or to all that came from it
``resume``    SIGCONT to all that came from one of them
``kill-job``  SIGKILL to every process of a job on this node
``fill``, ``free``  a file that takes the rest of a disk, and its end
``skew``      start the agent again with another clock
``slow``, ``fast``  put a relay in front of engines that answers late, limit what leaves
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

_ANSWER_S = 5.0
_END_S = 10.0
_PAUSE_S = 0.02
_MIB = 1 << 20
_FAKETIME = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/opt/*/lib/faketime/libfaketimeMT.so.1",
)


class NotHere(Exception):
    """The node has not what the fault is for; the message says what."""


# -- init and its children ---------------------------------------------------------------------


def ask_init(node_dir: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """One question to the init that serves in a node directory; OSError, ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(os.path.join(node_dir, "init.sock"))
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as file:
            answer: dict[str, Any] = json.loads(file.readline())
    return answer


def find(given: Mapping[str, Any]) -> dict[str, Any]:
    """The init of a cell's job on this node: ``{"node_dir", "pid", "children": {name: {...}}}``.

    ``given``: ``tmp`` (where node directories are), ``uid``, ``run_dir`` and ``cell`` (the turn).
    """
    for node_dir in sorted(glob.glob(os.path.join(given["tmp"], f"xs-{given['uid']}-*"))):
        with contextlib.suppress(OSError, ValueError, KeyError):
            said = ask_init(node_dir, {"op": "list"})
            words = words_of(said["pid"])
            ours = _after(words, "--run-dir") == given["run_dir"]
            if ours and _after(words, "--cell") == given["cell"]:
                children = {
                    child["name"]: child for child in said["children"] if child["exit"] is None
                }
                return {"node_dir": node_dir, "pid": said["pid"], "children": children}
    raise NotHere(f"cell {given['cell']} has nothing running on {socket.gethostname()}")


def words_of(pid: int) -> list[str]:
    """The command line of a process; OSError if there is none."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode(errors="replace").split("\0")


def _after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


def send(given: Mapping[str, Any]) -> dict[str, Any]:
    """Send the signal ``sig`` to the children ``names`` (those that there are), and to everything
    that came from those named in ``all``."""
    found = find(given)
    sent = {name: _targets(found, name, name in given["all"]) for name in given["names"]}
    sent = {name: pids for name, pids in sent.items() if pids}
    if not sent:
        there = ", ".join(sorted(found["children"])) or "nothing"
        raise NotHere(f"no {' or '.join(given['names'])} on {socket.gethostname()}, but {there}")
    for pid in (pid for pids in sent.values() for pid in pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, given["sig"])
    return {"sent": sent}


def resume(given: Mapping[str, Any]) -> dict[str, Any]:
    """SIGCONT to what came from the children ``names`` and is stopped; no error if all has
    ended."""
    try:
        found = find(given)
    except NotHere:
        return {"woken": []}
    pids = [pid for name in given["names"] for pid in _targets(found, name, True)]
    woken = [pid for pid in pids if _state(pid) in ("T", "t")]
    for pid in woken:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return {"woken": woken}


def _targets(found: Mapping[str, Any], name: str, everything: bool) -> list[int]:
    """A child's pid, and those of all that came from it, if so wanted; nothing if it is not."""
    child = found["children"].get(name)
    if child is None:
        return []
    pids = [int(child["pid"])]
    if everything:
        members = ask_init(found["node_dir"], {"op": "members", "name": name})
        pids += [pid for pid in members["pids"] if pid != child["pid"]]
    return pids


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


# -- a whole job on this node ------------------------------------------------------------------


def kill_job(given: Mapping[str, Any]) -> dict[str, Any]:
    """SIGKILL to every process of ``uid`` that was started by the job ``job_id``, until there is
    none: what is ended may have started something meanwhile."""
    mark = f"SLURM_JOB_ID={given['job_id']}".encode()
    spare = set(_ancestors(os.getpid()))
    killed: set[int] = set()
    deadline = time.monotonic() + _END_S
    while True:
        left = [pid for pid in _of_user(given["uid"]) if pid not in spare and _has(pid, mark)]
        if not left:
            return {"killed": len(killed)}
        if time.monotonic() > deadline:
            raise NotHere(f"processes do not end: {left[:8]}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(_PAUSE_S)


def _of_user(uid: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid == uid and _state(int(entry)) not in "ZX":
                    yield int(entry)


def _has(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return mark in file.read().split(b"\0")
    return False


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return


# -- a full disk -------------------------------------------------------------------------------


def fill(given: Mapping[str, Any]) -> dict[str, Any]:
    """Take what is free in ``directory`` but ``leave_mib``, by the file ``name``; refused if that
    were more than ``most_gib``."""
    directory, name = given["directory"], os.path.basename(given["name"])
    room = os.statvfs(directory)
    take = room.f_bavail * room.f_frsize - given["leave_mib"] * _MIB
    if take > given["most_gib"] * 1024 * _MIB:
        raise NotHere(
            f"{directory} has {take / _MIB / 1024:.1f} GiB free, and at most "
            f"{given['most_gib']:g} may be taken"
        )
    path = os.path.join(directory, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if take > 0:
            os.posix_fallocate(fd, 0, take)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return {"path": path, "mib": max(0, take) // _MIB}


def free(given: Mapping[str, Any]) -> dict[str, Any]:
    path = os.path.join(given["directory"], os.path.basename(given["name"]))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return {"path": path}


# -- another clock -----------------------------------------------------------------------------


def skew(given: Mapping[str, Any]) -> dict[str, Any]:
    """End the agent, and start it in init's name with libfaketime before init does: by ``skew_s``
    seconds (0: as it should be). Monotonic clocks stay, as they do when an NTP server is wrong."""
    found = find(given)
    agent = found["children"].get("agent")
    if agent is None:
        raise NotHere(f"no agent on {socket.gethostname()}")
    if not given["skew_s"]:
        os.kill(agent["pid"], signal.SIGKILL)  # init starts it as it always does
        return {"was": agent["pid"]}
    words = [word for word in words_of(agent["pid"]) if word]
    order = {
        "argv": words,
        "env": {
            "LD_PRELOAD": faketime(),
            "FAKETIME": f"{given['skew_s']:+g}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
    }
    file = os.path.join(found["node_dir"], f"chaos-{os.getpid()}.json")
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as stream:
            json.dump(order, stream)
        if os.getuid() == 0:
            os.chown(file, given["uid"], -1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent["pid"], signal.SIGKILL)
        message = {"op": "spawn", "name": "agent", "exec_file": file}
        for _ in range(50):  # init has not reaped it yet
            answer = ask_init(found["node_dir"], message)
            if answer.get("ok"):
                return {"was": agent["pid"], "is": answer["child"]["pid"]}
            time.sleep(_PAUSE_S / 4)
        agent = find(given)["children"].get("agent") or agent  # init was quicker
    raise NotHere("init starts the agent sooner than it can be started with another clock")


def faketime() -> str:
    """Where libfaketime is on this node."""
    for pattern in _FAKETIME:
        for path in sorted(glob.glob(pattern)):
            return path
    raise NotHere(f"libfaketime is not installed on {socket.gethostname()} (package libfaketime)")


# -- a slow link -------------------------------------------------------------------------------


def slow(given: Mapping[str, Any]) -> dict[str, Any]:
    """Limit what leaves this node to ``rate_mbit`` (0: no limit) by ``tbf``, and delay it by
    ``delay_ms``: by ``netem`` where the kernel has it, else by a relay in front of ``ports``, to
    which packets from outside are redirected. As root."""
    device = _device(given["address"])
    os.environ[_RELAY_MARK] = given["token"]  # for what is started below
    done: list[str] = []
    rate, delay = given["rate_mbit"], given["delay_ms"]
    netem = bool(delay) and _tc("add", device, "root", "netem", "delay", f"{delay:g}ms",
                                *(["rate", f"{rate:g}mbit"] if rate else []))  # fmt: skip
    if netem:
        done.append(f"netem: {delay:g} ms" + (f", {rate:g} Mbit/s" if rate else ""))
    elif rate:
        burst = str(max(16000, int(rate * 1e6 / 8 / 50)))  # bytes: 20 ms of it
        limit = ("tbf", "rate", f"{rate:g}mbit", "burst", burst, "latency", "400ms")
        if not _tc("add", device, "root", *limit):
            raise NotHere(f"tc cannot limit {device}: {_said[-1] if _said else 'no tc'}")
        done.append(f"tbf: {rate:g} Mbit/s on {device}")
    relays: list[int] = []
    if delay and not netem:
        relays = _relay(given["address"], given["ports"], delay / 1000)
        done.append(f"a relay before ports {given['ports']}: {delay:g} ms")
    return {"done": done, "device": device, "relays": relays}


def fast(given: Mapping[str, Any]) -> dict[str, Any]:
    """Take back what ``slow`` did, whatever of it was done."""
    with contextlib.suppress(OSError, NotHere):
        _tc("del", _device(given["address"]), "root")
    if shutil.which("nft"):
        subprocess.run(["nft", "delete", "table", "ip", _TABLE], capture_output=True, timeout=20)
    mark = f"{_RELAY_MARK}={given['token']}".encode()
    ended = [pid for pid in _of_user(os.getuid()) if pid != os.getpid() and _has(pid, mark)]
    for pid in ended:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"relays": ended}


_TABLE = "exaslurm_chaos"
_RELAY_MARK = "EXASLURM_CHAOS_RELAY"
_said: list[str] = []


def _device(address: str) -> str:
    """The interface that has an address."""
    done = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, timeout=20)
    for link in json.loads(done.stdout or b"[]"):
        if any(item["local"] == address for item in link["addr_info"]):
            return str(link["ifname"])
    raise NotHere(f"no interface of {socket.gethostname()} has the address {address}")


def _tc(verb: str, device: str, *words: str) -> bool:
    if shutil.which("tc") is None:
        return False
    argv = ["tc", "qdisc", verb, "dev", device, *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    _said.append(done.stderr.strip())
    return done.returncode == 0


def _relay(address: str, ports: list[int], delay_s: float) -> list[int]:
    from exaslurm.chaos.relay import start  # it needs asyncio: only here

    if shutil.which("nft") is None:
        raise NotHere("neither netem nor nft is here: answers cannot be delayed")
    started = [start(address, port, delay_s) for port in ports]
    rules = [
        f"add table ip {_TABLE}",
        f"add chain ip {_TABLE} in {{ type nat hook prerouting priority -100; }}",
        *(
            f'add rule ip {_TABLE} in iifname != "lo" ip daddr {address} '
            f"tcp dport {port} redirect to :{relay}"
            for port, (relay, _) in zip(ports, started, strict=True)
        ),
    ]
    done = subprocess.run(
        ["nft", "-f", "-"], input="\n".join(rules) + "\n", capture_output=True, text=True,
        timeout=20,
    )  # fmt: skip
    if done.returncode:
        raise NotHere(f"nft: {done.stderr.strip()}")
    return [pid for _, pid in started]


OPS = {
    "find": find,
    "signal": send,
    "resume": resume,
    "kill-job": kill_job,
    "fill": fill,
    "free": free,
    "skew": skew,
    "slow": slow,
    "fast": fast,
}


def main(argv: list[str]) -> int:
    """Exit code 0, or 1 with a sentence as ``{"error": ...}``."""
    op, text, *armed = argv
    if armed:
        print("ready", flush=True)
        if sys.stdin.readline().strip() != "go":
            return 0  # whoever wanted it is gone
    try:
        answer = OPS[op](json.loads(text))
    except NotHere as error:
        answer = {"error": str(error)}
    except (OSError, ValueError, KeyError) as error:
        answer = {"error": f"{op}: {type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
