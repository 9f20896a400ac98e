"""What every verb has in common: help, errors, exit codes, streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from exaslurm import __version__
from exaslurm.cli import main
from exaslurm.errors import (
    ExitCode,
    NotReadyError,
    QueryFailed,
    SpecError,
    SubmitAmbiguous,
    WaitTimeout,
)

Run = Callable[..., Any]


def every_command() -> list[tuple[str, ...]]:
    context = click.Context(main.cli)
    found: list[tuple[str, ...]] = []
    for verb in main.VERBS:
        command = main.cli.get_command(context, verb)
        assert command is not None
        found.append((verb,))
        if isinstance(command, click.Group):
            found += [(verb, name) for name in command.commands]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_of_every_verb(exaslurm: Run, words: tuple[str, ...]) -> None:
    done = exaslurm(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"exaslurm {' '.join(words)}" in done.out


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_option_has_a_help_text(words: tuple[str, ...]) -> None:
    command: Any = main.cli
    for word in words:
        command = command.get_command(click.Context(command), word)
    options = [item for item in command.params if isinstance(item, click.Option)]
    assert [item.name for item in options if not item.help] == []


def test_version(exaslurm: Run) -> None:
    assert exaslurm("--version").out == f"exaslurm {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submti"], "unknown verb 'submti'; did you mean 'submit'?"),
        (["xyzzy"], "unknown verb 'xyzzy'"),
        (["submit", "--dryrun", "x"], "unknown option --dryrun; did you mean --dry-run?"),
        (["status"], "missing argument 'DEPLOYMENT'"),
        (["key", "ad"], "unknown verb 'ad'; did you mean 'add'?"),
        (["submit", "x.yaml", "--timeout", "soon"], "'soon' is not a time such as 90s"),
    ],
)
def test_wrong_use_names_the_nearest(exaslurm: Run, words: list[str], says: str) -> None:
    done = exaslurm(*words)
    assert done.code == ExitCode.USAGE
    assert done.out == ""
    assert says in done.err
    assert done.err.startswith("exaslurm: error: ")
    assert "  remedy: see exaslurm" in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("bad"), 2),
        (WaitTimeout("late"), 3),
        (QueryFailed("no answer"), 4),
        (SubmitAmbiguous("who knows"), 5),
        (NotReadyError("not yet"), 6),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("oops"), 1),
    ],
)
def test_errors_become_exit_codes(
    exaslurm: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("exaslurm.api.locate.find_run_dir", fail)
    done = exaslurm("status", "hello")
    assert done.code == code
    assert "Traceback" not in done.err
    # After Ctrl-C the cursor stands behind ^C: click begins a new line.
    assert done.err.lstrip("\n").startswith("exaslurm: error: ")


def test_tracebacks_only_with_debug(exaslurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SpecError("bad", remedy="mend it")

    monkeypatch.setattr("exaslurm.api.locate.find_run_dir", fail)
    assert "Traceback" in exaslurm("status", "hello", "--debug").err
    monkeypatch.setenv("EXASLURM_DEBUG", "1")
    assert "Traceback" in exaslurm("status", "hello").err


def test_the_remedy_follows_the_message(exaslurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SpecError("one\ntwo", remedy="mend it")

    monkeypatch.setattr("exaslurm.api.locate.find_run_dir", fail)
    err = exaslurm("status", "hello").err
    assert err == "exaslurm: error: one\n  two\n  remedy: mend it\n"


def test_options_come_from_the_environment_too(
    exaslurm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASLURM_SUBMIT_TIMEOUT", "soon")
    assert "'soon' is not a time" in exaslurm("submit", "x.yaml").err


def test_variables_have_the_names_of_the_options(
    exaslurm: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(exaslurm("init", "hello", "--site", "lab").out)
    monkeypatch.setenv("EXASLURM_PLAN_JSON", "1")
    monkeypatch.setenv("EXASLURM_PLAN_TIME", "00:07:00")
    plan = json.loads(exaslurm("plan", path).out)
    times = {dict(part["directives"])["time"] for part in plan["cells"][0]["components"]}
    assert times == {"00:07:00"}
    monkeypatch.setenv("EXASLURM_SITE", "nosuchsite")
    assert "unknown site 'nosuchsite'" in exaslurm("plan", path).err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m exaslurm schema spec | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{", "")


def test_no_colour_off_a_terminal(exaslurm: Run) -> None:
    done = exaslurm("submti")
    assert "\x1b" not in done.err


SHELL = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}


def in_shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command line as a shell would run it; ``exaslurm`` is this one."""
    command = command.replace("exaslurm", f"{sys.executable} -m exaslurm")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**SHELL, **environ},
    )


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("exaslurm site list >&-", 0, ""),
        ("exaslurm --version <&- >&- 2>&-", 0, ""),
        ("exaslurm site list 2>&-", 0, ""),
        ("exaslurm validate no.yaml 2>&-", 2, ""),
        ("exaslurm validate no.yaml 2>/dev/full", 2, ""),
        ("exaslurm site list | true", 0, ""),
        ("exaslurm schema spec | head -c0", 0, ""),
        ("exaslurm --help >/dev/full", 2, "exaslurm: error: cannot write the result: No space"),
        ("exaslurm site list >/dev/full", 2, "exaslurm: error: cannot write the result: No space"),
    ],
)
def test_streams_that_are_closed_full_or_unread(command: str, code: int, err: str) -> None:
    done = in_shell(command)
    assert done.returncode == code
    assert done.stderr.startswith(err)
    assert len(done.stderr.splitlines()) == bool(err)


def test_text_that_the_terminal_cannot_show_is_escaped() -> None:
    done = in_shell("exaslurm validate no-\u4e2d.yaml", PYTHONIOENCODING="iso8859-1")
    assert done.returncode == 2
    assert r"no-\u4e2d.yaml" in done.stderr
    done = in_shell("exaslurm validate no-$'\\xff'.yaml")
    assert (done.returncode, "internal" in done.stderr) == (2, False)


def test_what_the_system_refuses_is_no_bug(exaslurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("exaslurm.api.locate.find_run_dir", fail)
    done = exaslurm("status", "hello")
    assert done.code == ExitCode.USAGE
    assert done.err == "exaslurm: error: cannot use /some/file: Permission denied\n"


def test_a_site_without_slurm_has_nothing_to_render_and_says_so(exaslurm: Run) -> None:
    spec = Path(__file__).resolve().parents[2] / "examples" / "local.yaml"
    done = exaslurm("render", spec, "--stdout")
    assert (done.code, done.out) == (0, "")
    assert "no batch scripts" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_cleaning_up_happen(number: signal.Signals) -> None:
    script = (
        "import os, signal, sys, click\n"
        # As a shell starts it: under nohup the test itself ignores SIGHUP, and so would this.
        f"signal.signal({int(number)}, signal.SIG_DFL)\n"
        "from exaslurm.cli import main\n"
        "@main.cli.command('wait')\n"
        "def wait():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    finally:\n"
        "        print('cleaned up')\n"
        "main.Verbs.get_command = lambda *_: wait\n"
        "main.Verbs.list_commands = lambda *_: ['wait']\n"
        "sys.argv = ['exaslurm', 'wait']\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned up\n", "")
