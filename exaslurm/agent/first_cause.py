"""Why a process ended, in one sentence, from its exit code and the end of its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

RESTART_MARKER = "===== exaslurm: start"
TAIL_BYTES = 64 * 1024
_MAX_LENGTH = 300

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# "(EngineCore pid=12) ERROR 11-29 20:36:21 [core.py:12] ValueError: ..." without what is before
# the message.
_PREFIX = re.compile(
    r"^(?:\([^()]*pid=\d+\)\s*)?(?:(?:ERROR|CRITICAL|WARNING|INFO)\s+"
    r"\d\d-\d\d \d\d:\d\d:\d\d\s+\[[^\]]*\]\s*)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Failure)\b:?\s*\S|^MemoryError$"
)
_ARGPARSE = re.compile(r"^[\w .\-/]+: error: (.+)$")
# The line after "ValidationError: 1 validation error for ModelConfig", which says what it is.
_PYDANTIC = re.compile(r"^(?:Value error, |Assertion failed, )?(.+?) \[type=\w+, input_value=")
_OURS = re.compile(r"^exaslurm: ")
# What processes say because another one has failed: true, and no cause.
_ECHOES = re.compile(
    r"Engine core initialization failed|EngineCore encountered an issue|EngineDeadError|"
    r"See root cause above|WorkerProc initialization failed|CancelledError|BrokenPipeError|"
    r"cannot schedule new futures after shutdown|Engine core proc .* died"
)
_HINTS = (
    (
        re.compile(r"Repo id must be in the form .*: '/|No such file or directory: '.*config.json"),
        "there is no model in that directory",
    ),
    (
        re.compile(r"Address already in use|EADDRINUSE|Errno 98"),
        "the port is in use by another program",
    ),
    (
        re.compile(
            r"(?:CUDA|HIP|XPU|GPU|device)[\w ():,]*out of memory|OutOfMemoryError|"
            r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE|RESOURCES)|"
            r"Free memory on device .* less than desired",
            re.IGNORECASE,
        ),
        "the GPU's memory is used up",
    ),
    (
        re.compile(
            r"^MemoryError|can't allocate memory|Cannot allocate memory|"
            r"(?:std::)?bad_alloc|ArrayMemoryError|out of memory"
        ),
        "the host's memory is used up",
    ),
    (
        re.compile(r"larger than the available KV cache memory|No available memory for the cache"),
        "the KV cache is too small: lower max-model-len or raise kv-cache-memory-bytes",
    ),
)


def after_last_start(text: str) -> list[str]:
    """Lines of the last start in a log that holds several."""
    return text[text.rfind(RESTART_MARKER) + 1 :].splitlines()


def last_error(lines: Iterable[str]) -> str | None:
    """The last line that names an error of its own, without log prefixes."""
    found = None
    for line in lines:
        bare = _PREFIX.sub("", _ANSI.sub("", line)).strip()
        argparse_error = _ARGPARSE.match(bare)
        pydantic_error = _PYDANTIC.match(bare)
        if argparse_error:
            found = argparse_error.group(1)
        elif pydantic_error:
            found = pydantic_error.group(1)
        elif (_EXCEPTION.match(bare) or _OURS.match(bare)) and not _ECHOES.search(bare):
            found = bare.removeprefix("exaslurm: ")
    return found[:_MAX_LENGTH] if found else None


def last_line(lines: Sequence[str]) -> str | None:
    """The last line that says anything, without log prefixes."""
    mark = RESTART_MARKER.lstrip("=")
    for line in reversed(lines):
        bare = _PREFIX.sub("", _ANSI.sub("", line)).strip()
        if bare and mark not in line and not _ECHOES.search(bare):
            return bare[:_MAX_LENGTH]
    return None


def cause_of_end(exit_code: int, log_tail: str, *, memory: str | None, log_name: str) -> str:
    """One sentence. ``memory``: the kernel killed a process of the step for memory meanwhile, and
    this is the limit. Which one it was it does not say: it is believed to be this one if it was
    killed, or if its log has no other reason (a core that is killed takes its server with it)."""
    lines = after_last_start(log_tail)
    error = last_error(lines)
    killed = exit_code == -int(signal.SIGKILL)
    if memory is not None and (killed or error is None):
        return f"the kernel killed it for memory: {memory}"
    if error is None:
        how = how_it_ended(exit_code)
        last = last_line(lines) if exit_code > 0 else None
        if last is not None:
            return f"{how}; its log ends: {last} ({log_name})"
        return f"{how}, without an error in its log ({log_name})"
    hint = next((text for pattern, text in _HINTS if pattern.search(error)), None)
    return f"{hint} ({error})" if hint else error


def how_it_ended(exit_code: int) -> str:
    """The exit code in words."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"
