"""What a user's processes leave on the hosts of a lab: taken before and after, and compared."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.lab import HOME, USER, Lab

HOSTS = ("login", "gateway", "c1", "c2", "c3", "c4")

# One line for each thing, with its kind in front. The probe's own processes are root's.
_PROBE = r"""
uid=$(id -u "$1")
for p in /proc/[0-9]*; do
    [ "$(stat -c %u "$p" 2>/dev/null)" = "$uid" ] || continue
    echo "process $(tr '\0' ' ' <"$p/cmdline" | cut -c1-120)"
done
find /tmp /var/tmp /dev/shm /run /exa/local -xdev -uid "$uid" -printf 'file %y %p\n' 2>/dev/null
ss -Hlntup 2>/dev/null | awk '{print "listens " $1 " " $5}' | sort -u
ss -Hlxp 2>/dev/null | awk '$5 !~ /^@?$/ {print "socket " $5}' | grep -v munge | sort -u
awk '{print "mount " $5}' /proc/self/mountinfo | sort
"""


@dataclass(frozen=True)
class Traces:
    """Everything that was seen, by host."""

    seen: dict[str, frozenset[str]]
    jobs: frozenset[str]

    def since(self, earlier: Traces) -> list[str]:
        """What is here now and was not then."""
        new = [
            f"{host}: {item}"
            for host, items in self.seen.items()
            for item in sorted(items - earlier.seen[host])
        ]
        return new + [f"job {job}" for job in sorted(self.jobs - earlier.jobs)]


def look(lab: Lab) -> Traces:
    """Look at every host of the lab, as root."""
    seen = {}
    for host in HOSTS:
        done = lab.on(host, "bash", "-c", _PROBE, "probe", USER, user="root")
        seen[host] = frozenset(done.stdout.splitlines())
    return Traces(seen, frozenset(lab.jobs()))


def run_dir(deployment: str) -> str:
    """Where a deployment of the lab's user is kept."""
    return f"{HOME}/exaslurm/{deployment}"
