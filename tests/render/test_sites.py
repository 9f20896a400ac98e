"""Every site that comes with the package, in every layout and every container.

The golden files are what an admin would review: the script without a container, and what each
container changes in it. To accept a change, run ``scripts/golden`` and read its diff.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exaslurm.api.site_check import sample_script
from exaslurm.api.site_samples import Sample, sample_plan, samples
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from tests.render.test_scripts import assert_clean

CONFIGS = Path(__file__).resolve().parents[2] / "site_configs"
GOLDEN = Path(__file__).parent / "golden" / "sites"


def site_of(name: str) -> Site:
    # The package's own files come first, whatever the developer has in ~/.config.
    return load_site(name, {"EXASLURM_SITE_CONFIG": str(CONFIGS), "HOME": "/nonexistent"})


SITES = {
    path.stem: site
    for path in sorted(CONFIGS.glob("*.yaml"))
    if (site := site_of(path.stem)).scheduler == "slurm"
}


def script(site: Site, sample: Sample) -> str:
    """A sample's script; the hash of a plan is nobody's to review."""
    return sample_script(dataclasses.replace(sample_plan(site, sample), hash="0" * 64))


def variants(site: Site) -> Iterator[list[Sample]]:
    """For each kind of worker and layout: without a container, then in each."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples(site):
        found.setdefault((sample.kind, sample.layout), []).append(sample)
    yield from found.values()


def compare(file: Path, text: str) -> None:
    if os.environ.get("EXASLURM_UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def changes(before: str, after: str, runtime: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "none", runtime, n=0
    )
    return "".join(lines)


@pytest.mark.parametrize("name", SITES)
def test_golden(name: str) -> None:
    site = SITES[name]
    for plain, *contained in variants(site):
        assert plain.runtime is None
        text = script(site, plain)
        compare(GOLDEN / name / f"{plain.kind}-{plain.layout}.sbatch", text)
        if contained:
            others = [changes(text, script(site, each), str(each.runtime)) for each in contained]
            compare(GOLDEN / name / f"{plain.kind}-{plain.layout}.containers.diff", "".join(others))


def test_no_golden_file_is_left_over() -> None:
    wanted = {
        f"{name}/{plain.kind}-{plain.layout}{suffix}"
        for name, site in SITES.items()
        for plain, *contained in variants(site)
        for suffix in (".sbatch", *([".containers.diff"] if contained else []))
    }
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*")} == wanted


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    written = []
    for name, site in SITES.items():
        for sample in samples(site):
            written.append(tmp_path / f"{name}-{sample.file_name}")
            written[-1].write_text(script(site, sample))
    assert len(written) >= 2 * 6 * len(SITES)
    assert_clean(*written)
