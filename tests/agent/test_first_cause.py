"""The sentence that a user reads when an engine has ended."""

from __future__ import annotations

import pytest

from exaslurm.agent.first_cause import RESTART_MARKER, cause_of_end, last_error

# As vLLM 0.32 writes it: the engine core's error twice, then the API server's echo.
CORE_FAILED = """\
(EngineCore pid=12) ERROR 11-29 20:36:21 [core.py:1100] EngineCore failed to start.
(EngineCore pid=12) ERROR 11-29 20:36:21 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-29 20:36:21 [core.py:1100]   File "core.py", line 1, in run
(EngineCore pid=12) ERROR 11-29 20:36:21 [core.py:1100] ValueError: rope_scaling is unknown
(EngineCore pid=12) Traceback (most recent call last):
(EngineCore pid=12) ValueError: rope_scaling is unknown
(APIServer pid=9) Traceback (most recent call last):
(APIServer pid=9)   File "serve.py", line 2, in cmd
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed
"""


BAD_OPTION = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (9) is greater than the derived one \
[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_MODEL = """\
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or \
'namespace/repo_name': '/no/model'. Use `repo_type` argument if needed.
"""


def cause(exit_code: int, log: str, *, memory: str | None = None) -> str:
    return cause_of_end(exit_code, log, memory=memory, log_name="/logs/r.log")


def test_the_echo_is_not_the_cause() -> None:
    assert cause(1, CORE_FAILED) == "ValueError: rope_scaling is unknown"


def test_what_pydantic_found_is_said() -> None:
    assert (
        cause(1, BAD_OPTION) == "User-specified max_model_len (9) is greater than the derived one"
    )


def test_a_missing_model_is_called_that() -> None:
    assert cause(1, NO_MODEL).startswith("there is no model in that directory (huggingface_hub.")
    assert "'/no/model'" in cause(1, NO_MODEL)


def test_only_the_last_start_counts() -> None:
    log = f"{RESTART_MARKER} 0 at x =====\nValueError: old\n{RESTART_MARKER} 1 at y =====\nfine\n"
    assert cause(3, log) == "ended with exit code 3; its log ends: fine (/logs/r.log)"


def test_a_log_without_an_error_is_quoted() -> None:
    """What a wrapper or a site's own command says before it gives up."""
    said = "Ray is forbidden on this node"
    assert cause(1, f"{said}\n\n") == f"ended with exit code 1; its log ends: {said} (/logs/r.log)"
    start = f"{RESTART_MARKER} 1 at y =====\n"
    nothing = "ended with exit code 1, without an error in its log (/logs/r.log)"
    assert cause(1, start) == nothing
    assert cause(1, "") == nothing
    # Of one that was killed, the last line is what it happened to be at.
    assert cause(-9, f"{start}INFO: 200 OK\n").startswith("ended by SIGKILL, without an error")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("vllm serve: error: unrecognized arguments: --foo", "unrecognized arguments: --foo"),
        ("\x1b[31mOSError: [Errno 98] Address already in use\x1b[0m",
         "the port is in use by another program (OSError: [Errno 98] Address already in use)"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
         ("the GPU's memory is used up "
         "(torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB)")),
        ("RuntimeError: HIP error: out of memory",
         "the GPU's memory is used up (RuntimeError: HIP error: out of memory)"),
        (("(Worker pid=7) ERROR 11-29 20:36:21 [m.py:1] ValueError: Free memory on device cuda:0 "
         "(1.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB)."),
         ("the GPU's memory is used up (ValueError: Free memory on device cuda:0 (1.2/79.1 GiB) on "
         "startup is less than desired GPU memory utilization (0.9, 71.2 GiB).)")),
        ("MemoryError", "the host's memory is used up (MemoryError)"),
        (("RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate "
         "memory: you tried to allocate 9 bytes."),
         ("the host's memory is used up (RuntimeError: [enforce fail at alloc_cpu.cpp:121] . "
         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.)")),
        ("exaslurm: cannot run on CPUs [99]", "cannot run on CPUs [99]"),
        ("exa1: error: no such thing", "no such thing"),
    ],
)  # fmt: skip
def test_kinds_of_lines(line: str, text: str | None) -> None:
    assert cause(1, f"Error handling is on\n{line}\nbye\n") == (text or line)


@pytest.mark.parametrize(
    "line",
    ["INFO all is well", "an Error occurred", "ErrorHandler: installed", "Traceback (most recent",
     "asyncio.exceptions.CancelledError: x", "  raise ValueError('x')"],
)  # fmt: skip
def test_what_is_no_error(line: str) -> None:
    assert last_error([line]) is None


def test_ends_by_signal() -> None:
    assert cause(-9, "ok").startswith("ended by SIGKILL,")
    assert cause(-250, "").startswith("ended by signal 250,")


LIMIT = "limit 7.5 GiB, cgroup /slurm/uid_7/job_9"


def test_the_kernel_is_named() -> None:
    named = f"the kernel killed it for memory: {LIMIT}"
    assert cause(-9, "ValueError: of long ago", memory=LIMIT) == named
    # It killed the engine's core: the server ends in its own way, and says so.
    assert cause(0, "RuntimeError: Engine core proc EngineCore died", memory=LIMIT) == named
    # Another engine of the node was killed: this one has a reason of its own.
    assert cause(1, "ValueError: the weights are bad", memory=LIMIT).startswith("ValueError")


def test_long_lines_are_cut() -> None:
    assert len(cause(1, "ValueError: " + "x" * 5000)) == 300
