"""The /etc that all hosts of a lab see: a copy of the machine's (or chroot's), with additions."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from labkit.errors import LabError, PrerequisiteError
from labkit.layout import USERS, Host
from labkit.network import address

RESOLV_CONF = """\
# There is no name server in the lab: /etc/hosts knows every name. Fail at once, not after 10 s.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


def passwd_lines() -> str:
    return "".join(
        f"{user.name}:x:{user.uid}:{user.uid}:lab user:{user.home}:/bin/bash\n" for user in USERS
    )


def group_lines() -> str:
    return "".join(f"{user.name}:x:{user.uid}:\n" for user in USERS)


def shadow_lines() -> str:
    """Accounts without a password: valid for su and cron, closed to a login."""
    return "".join(f"{user.name}:*:19000:0:99999:7:::\n" for user in USERS)


def hosts_file(subnet: int, hosts: list[Host]) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address(subnet, host.number)} {host.name}" for host in hosts]
    return "\n".join(lines) + "\n"


def account_ids(etc: Path, name: str) -> tuple[int, int]:
    """User and group id of a system account. Raises PrerequisiteError if there is none."""
    for line in (etc / "passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2]), int(fields[3])
    raise PrerequisiteError(f"{etc}/passwd: no account {name!r}: its package is not installed")


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _check_free(etc: Path) -> None:
    names = {user.name for user in USERS}
    ids = {str(user.uid) for user in USERS}
    for line in (etc / "passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] in names or fields[2] in ids:
            raise LabError(f"{etc}/passwd has {fields[0]} ({fields[2]}), which the lab needs")


def build(etc: Path, root: Path, subnet: int, hosts: list[Host], slurm: dict[str, str]) -> None:
    """Fill the directory `etc` for hosts that have the system of `root`."""
    _check_free(root / "etc")
    subprocess.run(["cp", "-a", str(root / "etc"), str(etc)], check=True, timeout=60)
    _append(etc / "passwd", passwd_lines())
    _append(etc / "group", group_lines())
    _append(etc / "shadow", shadow_lines())
    for name, text in (("hosts", hosts_file(subnet, hosts)), ("resolv.conf", RESOLV_CONF)):
        path = etc / name
        # Often a link to a file of a daemon that does not run here.
        path.unlink(missing_ok=True)
        path.write_text(text)
    (etc / "hostname").unlink(missing_ok=True)
    (etc / "hostname").touch()
    shutil.rmtree(etc / "slurm", ignore_errors=True)
    (etc / "slurm").mkdir()
    for name, text in slurm.items():
        (etc / "slurm" / name).write_text(text)
    _write_munge_key(etc)


def write_private(path: Path, data: bytes, owner: tuple[int, int], mode: int = 0o600) -> None:
    """Write a file that at no time anybody but root and `owner` can read."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(data)
    path.chmod(mode)
    shutil.chown(path, *owner)


def _write_munge_key(etc: Path) -> None:
    owner = account_ids(etc, "munge")
    directory = etc / "munge"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o700)
    shutil.chown(directory, *owner)
    write_private(directory / "munge.key", secrets.token_bytes(128), owner, 0o400)
