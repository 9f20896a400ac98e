"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

import inspect

import click

from exaslurm.cli.main import SECTIONS, cli

INTRODUCTION = """\
# The command line

One program with verbs. stdout is the result, stderr the talk; `--json` prints the result as JSON
whose `schema` key is versioned. There is no colour off a terminal, and none with `NO_COLOR`.
Every option can also be given by a variable `EXASLURM_<VERB>_<OPTION>`, such as
`EXASLURM_SUBMIT_TIMEOUT=2h`; `--site`, wherever it is, also by `EXASLURM_SITE`. More in
[environment variables](environment.md) and [exit codes](exit-codes.md).

`DEPLOYMENT` is the name of a deployment, its run directory, or the spec file that names it. `SPEC`
is a [spec file](spec.md).

This page is made from the commands by `scripts/reference`.
"""


def cli_reference() -> str:
    """The page, in Markdown."""
    context = click.Context(cli, info_name="exaslurm")
    parts = [INTRODUCTION]
    for title, verbs in SECTIONS.items():
        parts.append(f"## {title}\n")
        for verb in verbs:
            command = cli.get_command(context, verb)
            assert command is not None
            parts += _sections(command, f"exaslurm {verb}")
    return "\n".join(parts)


def _sections(command: click.Command, name: str) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"### {name}\n", _text(command), f"```\n{name} {usage}\n```\n"]
    rows = [_row(item, context) for item in command.params if isinstance(item, click.Option)]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n")
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            parts += _sections(found, f"{name} {sub}")
    return parts


def _text(command: click.Command) -> str:
    """The help text: paragraphs as they are, what follows ``\\b`` as a code block."""
    blocks = inspect.cleandoc(command.help or "").split("\n\n")
    parts = []
    for block in blocks:
        if block.startswith("\b\n"):
            heading, *lines = block[2:].splitlines()
            code = inspect.cleandoc("\n" + "\n".join(lines))
            parts.append(f"{heading.rstrip(':')}:\n\n```\n{code}\n```")
        else:
            parts.append(block)
    return "\n\n".join(parts) + "\n"


def _row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    escaped = text.replace("|", "\\|")
    return f"| `{names}` | {escaped} |"
