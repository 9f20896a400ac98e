"""Faults that are put into a running lab, and what `exaslurm doctor --json` must say of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from acceptance.lab import HOME, Lab, until
from acceptance.runner import LineFailed

PARTITION = "gpu"
NODES = 4
# The node that is broken; Slurm numbers those of the partition from c2 on.
VICTIM = "c3"
OTHERS = ("c2", "c4", "c5")
EVERYWHERE = ("login", "c2", "c3", "c4", "c5")
MODELS = "/exa/local/models"

BIND = f"mkdir -p {MODELS} && mount --bind /exa/shared/scratch {MODELS}"
SLOW = f"mkdir -p {MODELS} && bindfs --write-rate=1M --read-rate=1M /exa/shared/scratch {MODELS}"
HUNG = f"mkdir -p {MODELS} && bindfs /exa/shared/scratch {MODELS} && kill -STOP $(pgrep -n bindfs)"
UNBIND = f"umount -l {MODELS}; rmdir {MODELS}"
SHARED_MODELS = f"storage: {{shared: {MODELS}}}\n"

# A name server that thinks for three seconds about every question.
DNS = """
import socket, sys, threading, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
open("/run/dns.ready", "w").close()
def answer(data, who):
    time.sleep(3)
    end = data.index(b"\\0", 12) + 5
    is_a = data[end - 4:end - 2] == b"\\0\\1"
    head = data[:2] + b"\\x81\\x80\\0\\1" + (b"\\0\\1" if is_a else b"\\0\\0") + b"\\0\\0\\0\\0"
    record = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\0\\0\\4" + socket.inet_aton("10.77.255.1")
    s.sendto(head + data[12:end] + (record if is_a else b""), who)
while True:
    threading.Thread(target=answer, args=s.recvfrom(512), daemon=True).start()
"""
# The clock of every Python on one node, a minute and a half off.
CLOCK = """
import socket, time
if socket.gethostname() == "c3":
    real = time.time
    time.time = lambda: real() - 90
"""


CLOCK_DIR = "/exa/shared/scratch/clock"
SKEW = (
    f"mkdir -p {CLOCK_DIR} && cat >{CLOCK_DIR}/sitecustomize.py <<'END'\n{CLOCK}END\n"
    f"chmod -R a+rX {CLOCK_DIR}"
)
SHUT = (
    "nft add table inet shut && "
    "nft 'add chain inet shut in { type filter hook input priority 0; }' && "
    "nft add rule inet shut in tcp dport 20000-31999 drop"
)
BUSY = (
    "setsid python3 -c 'import socket, time; s = socket.socket(); s.bind((str(), 24003)); "
    "s.listen(); time.sleep(600)' >/dev/null 2>&1 </dev/null & echo $! >/run/busy.pid; "
    "until ss -Hltn sport = 24003 | grep -q .; do :; done"
)
FEW = (
    "mkdir /run/few && for each in sbatch squeue scancel sinfo sacct; do "
    'ln -s "$(command -v $each)" /run/few/; done'
)
NAMELESS = "grep -vw c4 /etc/hosts >/run/hosts; mount --bind /run/hosts /etc/hosts"
SLOW_NAMES = (
    f"{NAMELESS}; printf 'nameserver 127.0.0.1\\noptions timeout:9\\n' >/run/resolv; "
    "mount --bind /run/resolv /etc/resolv.conf; rm -f /run/dns.ready; "
    f"cat >/run/dns.py <<'END'\n{DNS}END\n"
    "setsid python3 /run/dns.py >/dev/null 2>&1 </dev/null & echo $! >/run/dns.pid; "
    "until [ -e /run/dns.ready ]; do :; done"
)
PYTHON = "/exa/shared/scratch/python"


def python(on_victim: str) -> str:
    """A Python for the site config that does something else on the victim."""
    return (
        f"cat >{PYTHON} <<'END'\n#!/bin/sh\n[ $(hostname) = {VICTIM} ] && {on_victim}\n"
        'exec /opt/exaslurm/env/bin/python "$@"\nEND\n'
        f"chmod 755 {PYTHON}"
    )


BROKEN = python("echo broken here && exit 1")
LOW_NOFILE = python("prlimit --pid $$ --nofile=1024:1024")
LOW_MEMLOCK = python("prlimit --pid $$ --memlock=32768:32768")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``host`` is where the check fails, by ``ids`` and no others, with ``value`` (a pattern).
    ``plant`` and ``undo`` are shell lines of root by host; ``site`` are lines of the site config
    that the doctor is given; ``nodes``: whether nodes are looked at besides the login node."""

    name: str
    ids: tuple[str, ...]
    value: str
    host: str = VICTIM
    plant: tuple[tuple[str, str], ...] = ()
    undo: tuple[tuple[str, str], ...] = ()
    site: str = ""
    nodes: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


FAULTS = (
    Fault(
        name="wrong MTU",
        ids=("uniform.mtu",),
        value="^eth0 1400; eth0 1500 on 3 other nodes$",
        plant=((VICTIM, "ip link set eth0 mtu 1400"),),
        undo=((VICTIM, "ip link set eth0 mtu 1500"),),
    ),
    Fault(
        name="missing mount",
        ids=("storage.shared",),
        value="written on another host, is not to be seen",
        plant=tuple((host, BIND) for host in EVERYWHERE if host != VICTIM),
        undo=tuple((host, UNBIND) for host in EVERYWHERE if host != VICTIM),
        site=SHARED_MODELS,
    ),
    Fault(
        name="slow mount",
        ids=("storage.speed",),
        value=f"^{MODELS}: a small file .* MiB/s",
        plant=tuple((host, SLOW if host == VICTIM else BIND) for host in EVERYWHERE),
        undo=tuple((host, UNBIND) for host in EVERYWHERE),
        site=SHARED_MODELS,
    ),
    Fault(
        name="hung mount",
        ids=("storage.shared",),
        value=f"^{MODELS}: no answer in 15 s$",
        plant=tuple((host, HUNG if host == VICTIM else BIND) for host in EVERYWHERE),
        undo=(
            (VICTIM, "pkill -CONT -x bindfs"),
            *((host, UNBIND) for host in EVERYWHERE),
        ),
        site=SHARED_MODELS,
    ),
    Fault(
        name="skewed clock",
        ids=("clock.skew",),
        value="^90.0 s behind the median of 4 nodes$",
        plant=(("login", SKEW),),
        undo=(("login", f"rm -r {CLOCK_DIR}"),),
        variables={"PYTHONPATH": CLOCK_DIR},
    ),
    Fault(
        name="blocked ports between nodes",
        ids=("net.peers",),
        value=r"^not reached from .*: no answer in 4 s$",
        plant=((VICTIM, SHUT),),
        undo=((VICTIM, "nft delete table inet shut"),),
    ),
    Fault(
        name="busy port",
        ids=("ports.free",),
        value="^0 of 1 blocks free; in use: 24003$",
        plant=((VICTIM, BUSY),),
        undo=((VICTIM, "kill $(cat /run/busy.pid)"),),
        site="ports: {first: 24000, last: 24499}\n",
    ),
    Fault(
        name="small /dev/shm",
        ids=("shm.size",),
        value="^64 MiB free of 64 MiB, 384 MiB needed$",
        plant=((VICTIM, "mount -t tmpfs -o size=64m,mode=1777 small /dev/shm"),),
        undo=((VICTIM, "umount -l /dev/shm"),),
    ),
    Fault(
        name="low nofile",
        ids=("limits.nofile",),
        value=r"^1024 \(hard limit\)$",
        plant=(("login", LOW_NOFILE),),
        undo=(("login", f"rm {PYTHON}"),),
        site=f"python: {PYTHON}\n",
    ),
    Fault(
        name="low memlock",
        ids=("limits.memlock",),
        value="^32 KiB$",
        plant=(("login", LOW_MEMLOCK),),
        undo=(("login", f"rm {PYTHON}"),),
        site=f"python: {PYTHON}\n",
    ),
    Fault(
        name="full disk",
        ids=("storage.local",),
        value="^cannot write to /exa/local: No space left on device$",
        plant=((VICTIM, "mount -t tmpfs -o size=300k,mode=1777 full /exa/local"),),
        undo=((VICTIM, "umount -l /exa/local"),),
    ),
    Fault(
        name="long temporary path",
        ids=("tmp.path",),
        value=f"^{HOME}/t has 23 characters$",
        host="login",
        site="storage: {ram: $HOME/t}\n",
        nodes=False,
    ),
    Fault(
        name="missing scontrol",
        ids=("slurm.commands",),
        value="^missing: scontrol$",
        host="login",
        plant=(("login", FEW),),
        undo=(("login", "rm -r /run/few"),),
        nodes=False,
        variables={"PATH": "/run/few"},
    ),
    Fault(
        name="host name that does not resolve",
        ids=("net.names",),
        value="^c4 does not resolve",
        plant=((VICTIM, NAMELESS),),
        undo=((VICTIM, "umount /etc/hosts"),),
    ),
    Fault(
        name="host name that resolves slowly",
        ids=("net.names",),
        value=r"^4 names, slowest 3\d\d\d ms \(c4\)$",
        plant=((VICTIM, SLOW_NAMES),),
        undo=((VICTIM, "umount /etc/hosts; umount /etc/resolv.conf; kill $(cat /run/dns.pid)"),),
    ),
    Fault(
        name="Python that does not work on one node",
        ids=("node.answer",),
        value="broken here",
        plant=(("login", BROKEN),),
        undo=(("login", f"rm {PYTHON}"),),
        site=f"python: {PYTHON}\n",
    ),
)


def by_name(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


Checks = dict[str, list[dict[str, Any]]]


def doctor(lab: Lab, fault: Fault | None, *, tree: str | None = None) -> tuple[int, Checks]:
    """Exit code and checks by host of `exaslurm doctor --json` on the login node. ``tree``: run
    this clone's code instead of what is installed."""
    site = f"schema: exaslurm/site/v1\nname: faulty\nextends: lab\n{fault.site if fault else ''}"
    lab.write(f"{HOME}/.config/exaslurm/sites/faulty.yaml", site)
    variables = dict(fault.variables if fault else {})
    paths = [path for path in (variables.get("PYTHONPATH"), tree) if path]
    if paths:
        variables["PYTHONPATH"] = ":".join(paths)
    words = ["doctor", "--site", "faulty", "--json"]
    if fault is None or fault.nodes:
        words += ["--partition", PARTITION, "--nodes", str(NODES)]
    python = f"{lab.env}/bin/python"
    done = lab.on("login", python, "-m", "exaslurm", *words, variables=variables, timeout_s=200)
    if not done.stdout:
        raise LineFailed(f"doctor said nothing: {done.stderr}")
    report = json.loads(done.stdout)
    return done.returncode, {host["host"]: host["checks"] for host in report["hosts"]}


@contextmanager
def planted(lab: Lab, fault: Fault) -> Iterator[None]:
    """The fault is there, and gone afterwards."""
    try:
        for host, script in fault.plant:
            done = lab.sh(script, host=host, user="root")
            if done.returncode:
                raise LineFailed(f"{fault.name} on {host}: {done.stdout}{done.stderr}")
        yield
    finally:
        for host, script in fault.undo:
            lab.sh(script, host=host, user="root")
        idle = lambda: "idle" in lab.on("login", "sinfo", "-hN", "-n", VICTIM, "-o%T").stdout  # noqa: E731
        until(idle, 30)


def verdict(fault: Fault, code: int, found: Checks, sound: Checks) -> list[str]:
    """What is wrong with the answer; nothing if the fault, and only the fault, was found."""
    wrong = []
    where = {"login"} | ({VICTIM, *OTHERS} if fault.nodes else set())
    if set(found) != where:
        wrong.append(f"hosts: {sorted(found)}")
    if code != 6:
        wrong.append(f"exit code {code}")
    failed = [check for check in found.get(fault.host, []) if check["outcome"] == "fail"]
    if tuple(check["id"] for check in failed) != fault.ids:
        wrong.append(f"{fault.host} failed: {[(c['id'], c['value']) for c in failed]}")
    for check in failed:
        if not re.search(fault.value, check["value"]):
            wrong.append(f"value: {check['value']}")
        if not check["remedy"]:
            wrong.append(f"no remedy: {check['id']}")
    for host, checks in found.items():
        before = {_name(c): c["outcome"] for c in sound.get(host, [])}
        for check in checks:
            mine = host == fault.host and check["id"] in fault.ids
            usual = before.get(_name(check), "pass")
            if check["id"] == "storage.speed" and check["outcome"] == "warn":
                continue  # all nodes share the disk of this machine, and its load
            if not mine and _RANK[check["outcome"]] > _RANK[usual]:
                wrong.append(f"{host}: {check['id']} is {check['outcome']}: {check['value']}")
    if fault.ids != ("node.answer",):
        lines = {_name(c) for c in found.get(fault.host, [])}
        missing = {_name(c) for c in sound.get(fault.host, [])} - lines
        # A directory that cannot be used cannot be timed; a clock is read over the network.
        excused = {"storage.speed", "net.latency", "clock.skew", "slurm"}
        gone = {name for name in missing if name.split()[0] not in excused}
        if gone and fault.name != "missing scontrol":
            wrong.append(f"lines that are not there: {sorted(gone)}")
    return wrong


_RANK = {"skip": 0, "pass": 0, "warn": 1, "fail": 2}


def _name(check: Mapping[str, Any]) -> str:
    return f"{check['id']} {check['subject']}".strip()
