"""What the pages show can be typed: verbs, options, specs and site configs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from exaslurm.cli import main
from exaslurm.registry import engines_yaml
from exaslurm.site.load import load_site
from exaslurm.spec.load import load_spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if "reference/cli" not in str(path)
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(exaslurm [^`]+)`")
HERE_DOCUMENT = re.compile(r"<<'EOF'\n.*?^EOF$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Every command line that begins with (or assigns from) exaslurm."""
    found = INLINE.findall(text)
    for language, body in FENCE.findall(text):
        if language != "console":
            continue
        for line in HERE_DOCUMENT.sub("", body).splitlines():
            found += re.findall(r"(?:^|\$ |\$\(|/)(exaslurm [a-z][^)|;&<>#]*)", line)
    return [item.strip() for item in found]


def problem(command: str) -> str | None:
    """What the command line would not understand."""
    words = shlex.split(command)[1:]
    context = click.Context(main.cli)
    current: click.Command = main.cli
    while words and isinstance(current, click.Group):
        if words[0].startswith("-") or not re.fullmatch(r"[a-z-]+", words[0]):
            return None if words[0] in ("--help", "--version") else f"no verb: {words[0]}"
        found = current.get_command(context, words[0])
        if found is None:
            return f"unknown verb {words[0]!r}"
        current, words = found, words[1:]
    known = {option for param in current.params for option in param.opts} | {"--help"}
    given = [word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    unknown = [word for word in given if word not in known]
    return f"unknown option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    found = commands(page.read_text(encoding="utf-8"))
    wrong = [f"{item}: {problem(item)}" for item in found if problem(item)]
    # What a later version brings is named where it is refused.
    assert [item for item in wrong if "rollout" not in item] == []


def test_a_wrong_command_is_found() -> None:
    assert problem("exaslurm submit spec.yaml --wiat") == "unknown option --wiat"
    assert problem("exaslurm sumbit spec.yaml") == "unknown verb 'sumbit'"
    assert problem("exaslurm key add hello me --expires 7d") is None
    text = "```console\n$ export K=$(exaslurm key add hello) U=$(exaslurm endpoint x)\n```"
    assert commands(text) == ["exaslurm key add hello", "exaslurm endpoint x"]


def yaml_blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        bodies = [body for language, body in FENCE.findall(text) if language == "yaml"]
        bodies += [match[9:-3] for match in HERE_DOCUMENT.findall(text)]
        found += [(page.name, body) for body in bodies if "schema: exaslurm/" in body]
    return found


@pytest.mark.parametrize(("page", "text"), yaml_blocks())
def test_specs_and_sites_are_valid(page: str, text: str, tmp_path: Path) -> None:
    data = yaml.safe_load(text)
    if data["schema"] == "exaslurm/v1":
        assert load_spec(Path(page), text).deployment
        return
    if data["schema"] == "exaslurm/engines/v1":
        for name in re.findall(r"~/(\S+\.key)", text):
            (tmp_path / name).write_text("key")
            (tmp_path / name).chmod(0o600)
        assert engines_yaml.parse(Path(page), text.replace("~", str(tmp_path)))
        return
    (tmp_path / f"{data['name']}.yaml").write_text(text)
    site = load_site(data["name"], {"EXASLURM_SITE_CONFIG": str(tmp_path), "HOME": "/home/me"})
    assert site.name == data["name"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_valid(path: Path) -> None:
    assert load_spec(path).deployment
