"""Run a command inside a host: as a child with captured output, or in the foreground."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import syscalls
from labkit.errors import LabError, UsageError

USER_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Signals that somebody may send to `lab exec` and that are meant for the command.
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
NOT_EXECUTABLE = 126
NOT_FOUND = 127


@dataclass(frozen=True)
class Doorway:
    """All that is needed to enter a running host."""

    host: str
    pid: int  # of the holder, as the real machine sees it
    cores: tuple[int, ...]
    cgroups: tuple[str, ...]  # directories to join, as the real machine sees them


def _step_in(door: Doorway) -> None:
    """Join cgroups, cores and namespaces; the PID namespace holds from the next fork on."""
    for directory in door.cgroups:
        Path(directory, "cgroup.procs").write_text("0")
    if door.cores:
        os.sched_setaffinity(0, door.cores)
    syscalls.enter_namespaces(door.pid)
    os.chdir("/")


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def popen(
    door: Doorway, argv: Sequence[str], *, stdout: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start `argv` as root in the host, with stderr mixed into stdout."""

    def step_in_and_fork() -> None:
        _step_in(door)
        child = os.fork()
        if child:
            # Popen waits for its error pipe to close, so let go of everything but the child.
            os.closerange(0, 256)
            os._exit(_exit_code(os.waitpid(child, 0)[1]))

    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": ROOT_PATH, "HOME": "/root", "LANG": "C.UTF-8"},
        preexec_fn=step_in_and_fork,  # noqa: PLW1509 - this program has no threads
        start_new_session=True,
    )


def run(door: Doorway, argv: Sequence[str], timeout_s: float = 30) -> str:
    """Run `argv` as root in the host and return its output. Raises LabError if it fails."""
    process = popen(door, argv)
    command = " ".join(argv)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        raise LabError(f"{door.host}: `{command}` gave no answer in {timeout_s:g} s") from error
    if process.returncode:
        raise LabError(
            f"{door.host}: `{command}` failed ({process.returncode}): {output.strip() or 'silent'}"
        )
    return output


def login_environment(account: pwd.struct_passwd, extra: Mapping[str, str]) -> dict[str, str]:
    """What a fresh login shell would have: nothing of the caller's but its terminal type."""
    environment = {
        "PATH": USER_PATH if account.pw_uid else ROOT_PATH,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell,
        "LANG": "C.UTF-8",
    }
    if "TERM" in os.environ:
        environment["TERM"] = os.environ["TERM"]
    return {**environment, **extra}


def _become(account: pwd.struct_passwd) -> None:
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.umask(0o022)


def _exec(
    account: pwd.struct_passwd, argv: Sequence[str], environment: Mapping[str, str], cwd: str
) -> int:
    """Replace the calling process by the command; return an exit code if that fails."""
    # Python ignores SIGPIPE; the command must not inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    try:
        _become(account)
        # A killed `lab exec` takes its command along; what called setsid lives on.
        syscalls.signal_when_parent_dies(signal.SIGTERM)
        os.chdir(cwd)
    except OSError as error:
        print(f"lab exec: {cwd}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    try:
        os.execvpe(argv[0], list(argv), dict(environment))
    except FileNotFoundError:
        print(f"lab exec: {argv[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"lab exec: {argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


def _wait_and_forward(child: int) -> int:
    """Wait for `child`, passing on signals that were sent to this process alone."""
    while True:
        info = signal.sigwaitinfo({signal.SIGCHLD, *FORWARDED})
        if info.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return _exit_code(status)
        elif info.si_pid:
            # Ctrl-C comes from the terminal (no sender) and has reached the command already.
            os.kill(child, info.si_signo)


def exec_in_foreground(
    door: Doorway,
    user: str,
    argv: Sequence[str],
    extra_environment: Mapping[str, str],
    cwd: str | None,
) -> int:
    """Run the command with the caller's stdin, stdout, stderr and terminal; return its code."""
    _step_in(door)
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise UsageError(f"--user {user}: {door.host} knows no such user") from error
    environment = login_environment(account, extra_environment)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *FORWARDED})
    child = os.fork()
    if child == 0:
        try:
            code = _exec(account, argv, environment, cwd or account.pw_dir)
        finally:
            sys.stderr.flush()
        os._exit(code)
    return _wait_and_forward(child)
