"""The task of the job step on each node: parent of everything that exaslurm runs there.

With ``proctrack/cgroup`` the end of the step's task ends every process of the step, so this task is
the one that must never die: standard library only, nothing imported from exaslurm, no call that can
block, and no message that can hurt it. It is a child subreaper: whatever its children leave behind
becomes its own child. It starts the node agent, again and again, and starts and signals processes
for it over ``<node dir>/init.sock``, one JSON object a line::

    {"op": "spawn", "name": N, "exec_file": F}       -> {"ok": true, "child": {...}}
    {"op": "signal", "name": N, "sig": 15, "session": true} -> {"ok": true, "sent": 3}
    {"op": "members", "name": N}                     -> {"ok": true, "pids": [...]}
    {"op": "list"}                                   -> {"ok": true, "children": [...], ...}
    {"op": "forget", "name": N}                      -> {"ok": true}
    {"op": "shutdown"}                               -> {"ok": true}

A child is named by its ``name``; ``pid`` and ``start`` (field 22 of /proc/PID/stat) may be given
too, and must then fit. ``session`` means every process that came from it, also those that made a
session of their own; ``spare`` leaves resource trackers out, but counts them.

Exit code: 0 after a stop, 75 (EX_TEMPFAIL) where the agent ends with it because a port is taken.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import Any

EX_TEMPFAIL = 75
AGENT = "agent"
TASK_VARIABLE = "EXASLURM_TASK"

_PR_SET_CHILD_SUBREAPER = 36
_SOCKET_PATH_MAX = 107
_LINE_MAX = 1 << 20
_RESTART_MIN_S, _RESTART_MAX_S = 0.2, 5.0
_TERM_S, _KILL_S, _TRACKERS_S = 3.0, 10.0, 1.5
_SWEEP_AGE_S = 600.0
_SAME_SIGNAL_S = 1.0
# Of what agent and controller import, the packages that vLLM's own environment may lack.
_NEEDED = ("aiohttp", "orjson")
_OWNER = "node-dir"
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1,
            signal.SIGUSR2)  # fmt: skip


def log(text: str) -> None:
    """One line on stderr, or nothing: a full pipe or a dead reader must not stop init."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} init: {text}\n".encode(errors="replace")[:4000]
    with contextlib.suppress(OSError):
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            os.write(2, line)


def process_table() -> dict[int, tuple[int, int, int]]:
    """pid -> (parent, session, start time in ticks) of all processes that are not zombies."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", "rb") as file:
                    text = file.read()
                fields = text[text.rfind(b")") + 2 :].split()
                if fields[0] not in (b"Z", b"X"):
                    table[int(entry)] = (int(fields[1]), int(fields[3]), int(fields[19]))
    return table


def descendants(table: dict[int, tuple[int, int, int]], roots: set[int]) -> set[int]:
    """All pids below ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def start_ticks(pid: int) -> int:
    """Start time of a process, also of a zombie that is not yet reaped."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    return int(text[text.rfind(b")") + 2 :].split()[19])


def task_of(pid: int) -> str | None:
    """Name of the child that a process descends from, by the environment it started with."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for item in file.read().split(b"\0"):
            if item.startswith(TASK_VARIABLE.encode() + b"="):
                return item.split(b"=", 1)[1].decode(errors="replace")
    return None


def without_trackers(pids: list[int]) -> list[int]:
    """Those that are not a resource tracker of Python's multiprocessing.

    A tracker removes what its program left in /dev/shm as soon as all others are gone, and then
    ends; killed together with them it cannot.
    """

    def is_tracker(pid: int) -> bool:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
        return False

    return [pid for pid in pids if not is_tracker(pid)]


@dataclasses.dataclass
class Child:
    """A process that init started, alive or not yet forgotten. ``exit`` is as in subprocess."""

    name: str
    pid: int
    start: int
    started_s: float
    exit: int | None = None
    ended_s: float | None = None


class Client:
    """One connection of the agent (or of a tool of the same user)."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.to_send = b""


class Init:
    """The event loop and what it knows."""

    def __init__(self, node_dir: str, agent_argv: list[str], grace_s: float) -> None:
        self.node_dir = node_dir
        self.agent_argv = agent_argv
        self.grace_s = grace_s
        self.started_s = time.time()
        self.children: dict[str, Child] = {}
        self.clients: dict[int, Client] = {}
        self.exit_code = 0
        self.stop_deadline: float | None = None
        self.told_at = 0.0
        self.agent_due = 0.0
        self.agent_delay_s = _RESTART_MIN_S
        self.agent_since = 0.0
        self.selector = selectors.DefaultSelector()
        self.wakeup, wakeup_write = socket.socketpair()
        for end in (self.wakeup, wakeup_write):
            end.setblocking(False)
        self._wakeup_write = wakeup_write  # kept open
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.setblocking(False)
        self.listener.bind(os.path.join(node_dir, "init.sock"))
        os.chmod(os.path.join(node_dir, "init.sock"), 0o600)
        self.listener.listen(16)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self._on_signal)
        self.selector.register(self.listener, selectors.EVENT_READ, self._on_connect)

    def run(self) -> int:
        """Until the end of the step; returns the exit code."""
        while True:
            try:
                self.reap()
                if self.stop_deadline is None:
                    self._keep_agent()
                elif self._alive(AGENT) is None or time.monotonic() > self.stop_deadline:
                    break
                quiet = self.stop_deadline is None and self._alive(AGENT) is not None
                for key, _ in self.selector.select(5.0 if quiet else 0.1):
                    key.data()
            except Exception as error:  # whatever it is, the engines need this process
                log(f"unexpected: {error!r}")
                time.sleep(0.05)  # not a wait: keeps a persistent fault from taking a whole core
        self.end_all()
        return self.exit_code

    def stop(self, why: str) -> None:
        """Ask the agent to drain; the second time, do not wait for it."""
        log(f"stopping: {why}")
        if self.stop_deadline is None:
            self.stop_deadline = time.monotonic() + self.grace_s
            self._signal_agent(signal.SIGTERM)
        else:
            self.stop_deadline = 0.0

    def spawn(self, name: str, argv: list[str]) -> Child:
        """Start a program in a session of its own."""
        if not name or self._alive(name):
            raise ValueError(f"{name!r} is running already" if name else "a child needs a name")
        env = {**os.environ, TASK_VARIABLE: name}
        # A signal between fork and exec would be written to the wake-up socket that the child
        # shares with us, and be taken for our own.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _become(argv, env)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        child = Child(name, pid, start_ticks(pid), time.time())
        self.children[name] = child
        return child

    def reap(self) -> None:
        """Collect every process that ended, our own children and what they left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children.values():
                if child.pid == pid and child.exit is None:
                    child.exit = os.waitstatus_to_exitcode(status)
                    child.ended_s = time.time()
                    log(f"{child.name} (pid {pid}) ended with {child.exit}")
                    if child.name == AGENT:
                        self._agent_ended(child.exit)

    def members(self, child: Child) -> list[int]:
        """Living processes that came from a child. Only descendants of init can be among them."""
        table = process_table()
        mine = descendants(table, {os.getpid()})
        seeds = {pid for pid in mine if table[pid][1] == child.pid and table[pid][2] >= child.start}
        seeds |= {pid for pid in mine if pid == child.pid and table[pid][2] == child.start}
        seeds |= {pid for pid in mine - seeds if task_of(pid) == child.name}
        return sorted(seeds | descendants(table, seeds))

    def end_all(self) -> None:
        """SIGTERM, then SIGKILL, until no process below init is left (or none that will die)."""
        for number, limit_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            began = time.monotonic()
            told: set[int] = set()
            while time.monotonic() < began + limit_s:
                self.reap()
                left = descendants(process_table(), {os.getpid()})
                if not left:
                    return
                spare = time.monotonic() < began + _TRACKERS_S
                for pid in without_trackers(sorted(left - told)) if spare else left - told:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                    told.add(pid)
                self.wakeup.setblocking(False)
                select.select([self.wakeup], [], [], 0.05)
                with contextlib.suppress(OSError):
                    self.wakeup.recv(4096)
        log("some processes did not end (waiting for a file system?)")

    def handle(self, message: Any) -> dict[str, Any]:
        """Carry out one message."""
        op = message["op"]
        if op == "spawn":
            if self.stop_deadline is not None:
                raise ValueError("stopping: nothing is started any more")
            child = self.spawn(str(message["name"]), _pinned(str(message["exec_file"])))
            return {"ok": True, "child": dataclasses.asdict(child)}
        if op == "signal":
            return {"ok": True, "sent": self._send(message)}
        if op == "members":
            return {"ok": True, "pids": self.members(self.children[message["name"]])}
        if op == "list":
            return {
                "ok": True,
                "pid": os.getpid(),
                "started_s": self.started_s,
                "stopping": self.stop_deadline is not None,
                "children": [dataclasses.asdict(child) for child in self.children.values()],
            }
        if op == "forget":
            child_to_forget = self.children[message["name"]]
            if child_to_forget.exit is None:
                raise ValueError(f"{child_to_forget.name} is running")
            del self.children[child_to_forget.name]
            return {"ok": True}
        if op == "shutdown":
            self.stop("asked to")
            return {"ok": True}
        raise ValueError(f"unknown op {op!r}")

    def _send(self, message: Any) -> int:
        child = self.children[message["name"]]
        if message.get("pid", child.pid) != child.pid or (
            message.get("start", child.start) != child.start
        ):
            raise ValueError(f"{child.name} is pid {child.pid} now")
        number = signal.Signals(message["sig"])
        if message.get("session"):
            targets = self.members(child)
        else:
            targets = [child.pid] if child.exit is None else []
        for pid in without_trackers(targets) if message.get("spare") else targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(targets)

    def _alive(self, name: str) -> Child | None:
        child = self.children.get(name)
        return child if child is not None and child.exit is None else None

    def _keep_agent(self) -> None:
        now = time.monotonic()
        if self._alive(AGENT) is None and now >= self.agent_due:
            self.agent_since = now
            self.agent_due = now + self.agent_delay_s  # also if the fork fails
            child = self.spawn(AGENT, self.agent_argv)
            log(f"agent is pid {child.pid}")

    def _agent_ended(self, code: int) -> None:
        if code in (0, EX_TEMPFAIL):
            if self.stop_deadline is None:
                self.stop_deadline = 0.0
                self.exit_code = code
            return
        now = time.monotonic()
        long_lived = now - self.agent_since > 6 * _RESTART_MAX_S
        self.agent_delay_s = (
            _RESTART_MIN_S if long_lived else min(2 * self.agent_delay_s, _RESTART_MAX_S)
        )
        self.agent_due = now + self.agent_delay_s

    def _signal_agent(self, number: int) -> None:
        agent = self._alive(AGENT)
        if agent is not None:
            os.kill(agent.pid, number)

    def _on_signal(self) -> None:
        for number in self.wakeup.recv(4096):
            # SIGUSR2 is the batch script's word: srun passes that on, and SIGTERM not.
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
                # One signal arrives several times where Slurm tells every process of the step and
                # a container's runtime passes on what it was told: not yet "do not wait".
                if time.monotonic() > self.told_at + _SAME_SIGNAL_S:
                    self.told_at = time.monotonic()
                    self.stop(f"got {signal.Signals(number).name}")
            elif number == signal.SIGUSR1:
                self._signal_agent(number)

    def _on_connect(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] not in (os.getuid(), 0):
            connection.close()
            return
        client = Client(connection)
        self.clients[connection.fileno()] = client
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._on_client(client))

    def _on_client(self, client: Client) -> None:
        try:
            data = client.connection.recv(65536)
            client.received += data
            for line in _complete_lines(client):
                client.to_send += self._answer(line)
            client.to_send = client.to_send[client.connection.send(client.to_send) :]
            if not data or len(client.received) > _LINE_MAX:
                self._drop(client)
        except BlockingIOError:
            if len(client.to_send) > _LINE_MAX:  # it asks and does not read
                self._drop(client)
        except OSError:
            self._drop(client)

    def _answer(self, line: bytes) -> bytes:
        try:
            answer = self.handle(json.loads(line))
        except KeyError as error:
            answer = {"ok": False, "error": f"no {error.args[0]!r}"}
        except Exception as error:  # a malformed message is the sender's problem
            answer = {"ok": False, "error": str(error) or repr(error)}
        return json.dumps(answer).encode() + b"\n"

    def _drop(self, client: Client) -> None:
        self.clients.pop(client.connection.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(client.connection)
        client.connection.close()


def _complete_lines(client: Client) -> Iterator[bytes]:
    while b"\n" in client.received:
        line, client.received = client.received.split(b"\n", 1)
        yield line


def _become(argv: list[str], env: dict[str, str]) -> None:
    """The child's side of the fork; never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # Slurm's warning before the end of a job (--signal) reaches every process of the step with
        # some proctrack plugins, and by default it kills.
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(argv[0], argv, env)
    except BaseException as error:
        log(f"cannot run {argv[0]}: {error!r}")
    finally:
        os._exit(127)


def _pinned(exec_file: str) -> list[str]:
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pinned_exec.py")
    return [sys.executable, "-S", "-E", "-s", script, exec_file]


def private_dir(path: str) -> str:
    """Make ``path`` (0700) and return it, or another name beside it if that one is not ours.

    What an init that was killed left under the name is removed; a living init is an error.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        return path
    info = os.lstat(path)
    if info.st_uid != os.getuid() or not os.path.isdir(path) or os.path.islink(path):
        log(f"{path} belongs to somebody else")
        return tempfile.mkdtemp(prefix=os.path.basename(path) + "-", dir=os.path.dirname(path))
    if not serves(path):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, 0o700, exist_ok=True)
        return path
    raise SystemExit(f"exaslurm: another init serves {path} already")


def serves(path: str) -> bool:
    """Whether a living init answers in this node directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.path.join(path, "init.sock"))
        except OSError:
            return False
    return True


def sweep(parent: str) -> None:
    """Remove our own directories of jobs that ended without us: a node that Slurm gave up on, or
    a SIGKILL after the grace. What is new may belong to an init that does not listen yet."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(f"xs-{os.getuid()}-") and entry.is_dir(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                new = time.time() - info.st_mtime < _SWEEP_AGE_S
                node_dir = entry.path
                with contextlib.suppress(OSError):  # on node-local storage: whose it is
                    node_dir = os.readlink(os.path.join(entry.path, _OWNER))
                if info.st_uid == os.getuid() and not new and not serves(node_dir):
                    log(f"removing {entry.path}, left by a job that is over")
                    shutil.rmtree(entry.path, ignore_errors=True)


def make_dirs(plan: Any, options: argparse.Namespace) -> list[str]:
    """The node's runtime directory and, where the site has node-local storage, one there."""
    if options.local:
        tag = f"{zlib.crc32(os.path.realpath(options.run_dir).encode()):08x}"
    else:
        tag = f"{os.environ.get('SLURM_JOB_ID', 'nojob')}-{options.het_group}"
    name = f"xs-{os.getuid()}-{tag}"
    sweep(plan["node"]["tmp"])
    node_dir = private_dir(os.path.join(plan["node"]["tmp"], name))
    if len(os.path.join(node_dir, "init.sock")) > _SOCKET_PATH_MAX:
        os.rmdir(node_dir)
        raise SystemExit(
            f"exaslurm: {node_dir} is too long for sockets; give the site config a shorter tmp"
        )
    made = [node_dir]
    fast = plan["node"].get("local")
    if fast and os.path.isdir(fast) and not os.path.samefile(fast, plan["node"]["tmp"]):
        sweep(fast)
        with contextlib.suppress(OSError):
            made.append(private_dir(os.path.join(fast, name)))
            os.symlink(node_dir, os.path.join(made[-1], _OWNER))
            os.symlink(made[-1], os.path.join(node_dir, "local"))
    return made


def require_packages() -> None:
    """End here if agent or controller could not even begin: a virtual environment or an image
    that lacks something would be started over and over, with the reason in the last place that
    one looks."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"exaslurm: the Python of the nodes ({sys.executable}) lacks {', '.join(missing)}: "
            f"{sys.executable} -m pip install {' '.join(missing)}, in the image if there is one"
        )


def main(argv: list[str]) -> int:
    """Set up, run, remove what was set up."""
    parser = argparse.ArgumentParser(prog="exaslurm.bootstrap.init")
    for option in ("--gen-dir", "--run-dir", "--cell", "--het-group", "--head-host", "--port-base"):
        parser.add_argument(option, required=True)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--grace-s", type=float, default=20.0)
    options = parser.parse_args(argv)
    os.umask(0o077)
    require_packages()
    # RDMA locks the memory that it registers; Slurm may have brought the login node's soft limit.
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    with open(os.path.join(options.gen_dir, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log("cannot become a subreaper: processes may outlive their parents")
    # Children run in other directories: if this package is not installed, they must find it too.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        path = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    os.environ["PYTHONSAFEPATH"] = "1"  # a folder "exaslurm" in the user's directory is not ours
    directories = make_dirs(plan, options)
    # The job's directory lies on a file system that may go away and come back as another one.
    os.chdir("/")
    agent = [sys.executable, "-m", "exaslurm.agent", "--node-dir", directories[0], *argv]
    try:
        return Init(directories[0], agent, options.grace_s).run()
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
