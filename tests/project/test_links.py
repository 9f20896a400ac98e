"""Links in Markdown files lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)


def markdown_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return sorted(ROOT / name for name in done.stdout.split("\0") if name)


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown viewer makes of the headings."""
    headings = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


def broken_links(file: Path) -> list[str]:
    broken = []
    text = file.read_text(encoding="utf-8")
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (file.parent / name).resolve() if name else file
        if not path.exists() or (
            anchor and path.suffix == ".md" and anchor not in anchors(path.read_text("utf-8"))
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("file", markdown_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    assert broken_links(file) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        "# A title: here\n[x](gone.md) [y](#a-title-here) [z](#no) [w](https://e.org)\n"
    )
    assert broken_links(file) == ["gone.md", "#no"]
