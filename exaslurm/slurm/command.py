"""Running one Slurm command: argv, time limit, clean environment, answer or error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exaslurm.errors import CommandNotFound

# What Slurm says when its controller or database cannot be talked to just now.
_TRANSIENT = (
    "socket timed out",
    "unable to contact slurm controller",
    "unable to contact the slurm controller",
    "connection refused",
    "connection reset",
    "connect failure",
    "zero bytes were transmitted",
    "transport endpoint is not connected",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "message receive failure",
    "unexpected message received",
    "slurm backup controller in standby mode",
    "problem talking to the database",
    "slurmdbd: sending persistconn",
    "slurm_persist_conn_open",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said. ``returncode`` is None if it was ended at its time limit."""

    argv: tuple[str, ...]
    returncode: int | None
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """The command's own words, without its name in front, on one line."""
        text = self.stderr.strip() or self.stdout.strip()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        words = (line.split(": error: ", 1)[-1] for line in lines)
        return "; ".join(dict.fromkeys(words))

    @property
    def is_transient(self) -> bool:
        """Whether the same question may be answered a moment later."""
        return self.returncode is None or says(self.complaint, _TRANSIENT)


def says(text: str, phrases: Sequence[str]) -> bool:
    """Whether one of the (lower-case) phrases occurs in a text."""
    lower = text.lower()
    return any(phrase in lower for phrase in phrases)


def run(argv: Sequence[str], *, environ: Mapping[str, str], timeout_s: float) -> Answer:
    """Run a command to its end or its time limit.

    Raises CommandNotFound if it is not on PATH or cannot be executed.
    """
    try:
        done = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            encoding="utf-8",
            errors="replace",
            # The log of a job gets the umask of its sbatch.
            umask=0o077,
        )
    except subprocess.TimeoutExpired as late:
        silence = f"no answer in {timeout_s:g} s"
        return Answer(tuple(argv), None, _text(late.stdout), _text(late.stderr) or silence)
    except (FileNotFoundError, PermissionError) as error:
        raise CommandNotFound(
            f"cannot run {argv[0]!r} here: {error.strerror}",
            remedy="run this on a login node of the cluster, or put Slurm's bin directory on PATH"
            " (module load slurm); without Slurm, use 'site: local'",
        ) from None
    return Answer(tuple(argv), done.returncode, done.stdout, done.stderr)


def _text(part: bytes | str | None) -> str:
    # Whatever encoding was asked for, the output of a command that ran late is bytes (bpo-87597).
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""
