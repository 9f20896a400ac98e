"""``exaslurm chat``: talk to a deployment through its router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exaslurm.cli.output import result_json, talk
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb
from exaslurm.errors import UserError

if TYPE_CHECKING:
    from exaslurm.cli.openai_http import ChatClient


@verb("chat", short_help="Ask a question; the answer is streamed to the terminal.")
@deployment_argument
@click.argument("prompt", required=False)
@click.option("--model", metavar="NAME", help="Model to ask. Default: the first one served.")
@click.option("--system", metavar="TEXT", help="System message before the conversation.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Length of the answer at most.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0.0),
    default=None,
    help="0: always the likeliest token. Default: what the model says.",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the key. Else EXASLURM_API_KEY, else a key for this call only.",
)
@click.option("--url", metavar="URL", help="Base URL to use instead of the deployment's router.")
@json_option
@deployment_site_option
def chat_command(
    deployment: str,
    prompt: str | None,
    model: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    key_file: Path | None,
    url: str | None,
    as_json: bool,
    site: str | None,
) -> None:
    """Ask DEPLOYMENT a question and stream the answer.

    Without PROMPT: a conversation on a terminal, else the prompt is read from stdin. Without a
    key, one is made that lives as long as this command (you own the deployment).
    """
    import os

    from exaslurm.api.endpoint import reachable_endpoint
    from exaslurm.api.locate import find_run_dir
    from exaslurm.cli.openai_http import ChatClient, borrowed_key

    environ = dict(os.environ)
    run_dir = find_run_dir(deployment, environ, site=site)
    if url:
        base, certificate = url.rstrip("/"), ""
    else:
        router = reachable_endpoint(run_dir)
        base, certificate = router.base_url, router.certificate
    given = _read_key(key_file) if key_file else environ.get("EXASLURM_API_KEY")
    with borrowed_key(run_dir, given) as key:
        client = ChatClient(base, key, certificate)
        chosen = model or client.first_model()
        options: dict[str, object] = {"model": chosen, "max_tokens": max_tokens}
        if temperature is not None:
            options["temperature"] = temperature
        messages = [{"role": "system", "content": system}] if system else []
        if prompt is None and sys.stdin.isatty() and not as_json:
            _converse(client, messages, options)
            return
        text = prompt if prompt is not None else sys.stdin.read().strip()
        if not text:
            raise UserError("there is no prompt", remedy="give it as an argument or on stdin")
        messages.append({"role": "user", "content": text})
        if as_json:
            result_json(client.ask(messages, options))
        else:
            _stream(client, messages, options)


def _read_key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        key = ""
    if not key:
        raise UserError(f"{path} holds no key")
    return key


def _stream(client: ChatClient, messages: list[dict[str, str]], options: dict[str, object]) -> str:
    parts = []
    for piece in client.stream(messages, options):
        parts.append(piece)
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    return "".join(parts)


def _converse(
    client: ChatClient, messages: list[dict[str, str]], options: dict[str, object]
) -> None:
    talk(f"talking to {options['model']}; an empty line or Ctrl-D ends it")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            talk("")
            return
        if not text:
            return
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _stream(client, messages, options)})
