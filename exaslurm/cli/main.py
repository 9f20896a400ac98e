"""The ``exaslurm`` command: one binary, its verbs, and what the shell gets back."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from exaslurm import __version__
from exaslurm.cli.output import give_up, prepare_streams, print_error, talk
from exaslurm.cli.verb import NearestGroup
from exaslurm.errors import ExaslurmError, ExitCode

# verb -> module in exaslurm.cli.verbs, in the order in which people need them.
SECTIONS: dict[str, dict[str, str]] = {
    "Write a spec": {"init": "spec", "validate": "spec", "schema": "spec"},
    "Start and stop": {"plan": "plan", "render": "plan", "submit": "submit", "stop": "submit"},
    "Change": {
        "scale": "scale",
        "drain": "drain",
        "rollout": "rollout",
        "rollback": "rollout",
    },
    "Look": {
        "status": "status",
        "history": "rollout",
        "logs": "logs",
        "endpoint": "endpoint",
    },
    "Use": {"key": "key", "chat": "chat"},
    "Serve": {"router": "serve", "gateway": "serve", "supervise": "supervise"},
    "The machine": {"site": "site", "topo": "topo", "doctor": "doctor"},
    "Test": {"chaos": "chaos"},
}
VERBS: dict[str, str] = {
    verb: module for verbs in SECTIONS.values() for verb, module in verbs.items()
}


class Verbs(NearestGroup):
    """The verbs, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's interface)
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 (click's interface)
        cmd_name: str,
    ) -> click.Command | None:
        module = VERBS.get(cmd_name)
        if module is None:
            return None
        loaded = importlib.import_module(f"exaslurm.cli.verbs.{module}")
        command = getattr(loaded, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            rows = []
            for verb in verbs:
                command = self.get_command(ctx, verb)
                if command is not None:
                    rows.append((verb, command.get_short_help_str(limit=70)))
            with formatter.section(title):
                formatter.write_dl(rows, col_spacing=3)


@click.group(
    cls=Verbs,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "EXASLURM",
        "max_content_width": 100,
    },
    epilog=(
        "Exit codes: 0 ok, 1 internal error, 2 wrong use or spec, 3 wait timed out, 4 Slurm "
        "refused, 5 ambiguous submission, 6 not ready or degraded, 130 interrupted. Every option "
        "can also be set by EXASLURM_<VERB>_<OPTION>."
    ),
)
@click.version_option(__version__, "-V", "--version", message="exaslurm %(version)s")
def cli() -> None:
    """Serve LLMs on a Slurm cluster: one YAML file in, one OpenAI-compatible address out.

    \b
    Start with:
        exaslurm init > spec.yaml
        exaslurm submit spec.yaml --wait
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code. Never raises what a user should not see."""
    prepare_streams()
    arguments = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in arguments or bool(os.environ.get("EXASLURM_DEBUG"))
    try:
        result = _invoke(arguments)
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except (KeyboardInterrupt, EOFError, click.Abort):
        if sys.stderr.isatty():
            talk("")  # the cursor stands behind ^C
        print_error("interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        verb = context.command_path if context is not None else "exaslurm"
        print_error(_usage_text(error), remedy=f"see {verb} --help")
        return ExitCode.USAGE
    except BrokenPipeError:
        give_up(sys.stdout)  # the reader (head, less) has seen enough
        return ExitCode.OK
    except ExaslurmError as error:
        if debug:
            traceback.print_exc()
        print_error(str(error), remedy=error.remedy)
        return error.exit_code
    except OSError as error:
        if debug:
            traceback.print_exc()
        return _report_os_error(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        print_error(
            f"internal error: {type(error).__name__}: {error}",
            remedy="run the same command with --debug and report what it prints",
        )
        return ExitCode.INTERNAL


def _invoke(arguments: list[str]) -> object:
    """What the verb returns. click's ``main`` would make an exit code of its own of a reader that
    went away."""
    if "_EXASLURM_COMPLETE" in os.environ:
        return cli.main(arguments, "exaslurm", standalone_mode=False)
    try:
        with cli.make_context("exaslurm", arguments) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code


def _report_os_error(error: OSError) -> ExitCode:
    """What the system refuses: a file whose name the error has, or else the result's own stream."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        print_error(f"cannot use {os.fsdecode(error.filename)}: {reason}")
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        print_error(f"cannot write the result: {reason}")
        give_up(sys.stdout)
    else:
        print_error(f"the system refused: {reason}")
    return ExitCode.USAGE


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message().strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[:2] != text[:2].upper() else text


def main() -> NoReturn:
    """Entry point of the console script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)
    sys.exit(run())


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """End as after Ctrl-C: what was made for this command only is taken away again."""
    raise SystemExit(128 + number)
