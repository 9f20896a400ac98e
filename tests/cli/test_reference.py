"""docs/reference/cli.md is what the commands say."""

from __future__ import annotations

from pathlib import Path

from exaslurm.cli.reference import cli_reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_reference(), "run scripts/reference"
