"""Every site config that comes along: each script that comes of it, and what linters say."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from exaslurm.api.site_check import check_site, rendered
from exaslurm.api.site_samples import Sample, sample_plan, samples, worker_kinds
from exaslurm.site.load import load_site
from exaslurm.site.model import Site

CONFIGS = Path(__file__).resolve().parents[2] / "site_configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
CENTRES = [name for name in NAMES if name not in ("generic", "lab", "local")]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"HOME": str(tmp_path), "EXASLURM_SITE_CONFIG": str(CONFIGS), "PATH": path}


def headers(text: str) -> list[dict[str, str | None]]:
    """The options of each component."""
    parts: list[dict[str, str | None]] = [{}]
    for line in text.splitlines():
        if line == "#SBATCH hetjob":
            parts.append({})
        elif found := re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(.*))?", line):
            parts[-1][found[1]] = found[2]
    return parts


def test_there_are_at_least_ten_centres() -> None:
    assert len(CENTRES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_clean(name: str, environ: dict[str, str]) -> None:
    check = check_site(name, environ)
    assert check.problems == ()
    if name != "local":
        assert check.site is not None
        assert len(check.scripts) == len(list(samples(check.site))) >= 12
        assert check.linters == ("bash", "shellcheck")


@pytest.mark.parametrize("name", CENTRES)
def test_the_rules_of_the_site_hold_in_every_header(name: str, environ: dict[str, str]) -> None:
    site = load_site(name, environ)
    for sample, text in rendered(site, environ):
        assert isinstance(text, str)
        parts = headers(text)
        assert len(parts) == (2 if sample.layout == "het" else 1)
        for options in parts:
            given = set(options)
            assert {item.removeprefix("--") for item in site.slurm.mandatory_directives} <= given
            assert not set(site.slurm.forbidden_directives) & given
            assert ("mem" in given) == (site.slurm.memory != "none")
        assert_limits(site, sample, parts[-1])


def assert_limits(site: Site, sample: Sample, options: dict[str, str | None]) -> None:
    kind = site.node_kinds[sample.kind]
    assert options.get("partition") == kind.partition
    assert int(options["cpus-per-task"] or 0) <= (kind.known_cores or 0)
    if site.slurm.gres != "none":
        option = "gres" if site.slurm.gres == "gres" else "gpus-per-node"
        assert (options[option] or "").endswith(str(kind.gpus))


@pytest.mark.parametrize("name", CENTRES)
def test_a_site_says_what_nobody_has_confirmed(name: str, environ: dict[str, str]) -> None:
    """Nobody has run on these machines: each has something that is only read, and names a page
    for the rest."""
    site = load_site(name, environ)
    assert site.unverified
    sample = Sample(kind=worker_kinds(site)[0], layout="single", runtime=None)
    assert [note for note in sample_plan(site, sample).notes if "not confirmed" in note]
    assert "# Sources" in (CONFIGS / f"{name}.yaml").read_text()


def test_frontier_asks_for_what_its_guide_says(environ: dict[str, str]) -> None:
    site = load_site("frontier", environ)
    plan = sample_plan(site, Sample(kind="gpu", layout="single", runtime=None))
    options = dict(plan.cells[0].components[0].directives)
    wanted = {
        "partition": "batch",
        "account": "abc123",
        "cpus-per-task": "56",
        "gpus-per-node": "8",
        "constraint": "nvme",
    }
    assert {key: options[key] for key in wanted} == wanted
    assert plan.srun_args == ("--network=disable_rdzv_get",)
    assert plan.node.shared == "/lustre/orion/abc123/scratch/ada"


def test_a_site_whose_keys_rule_it_out(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tight.yaml").write_text(
        "schema: exaslurm/site/v1\nname: tight\nextends: frontier\n"
        "partitions: {batch: {max_time: 10}}\n"
        "prologue: [if true]\n"
    )
    environ["EXASLURM_SITE_CONFIG"] += f":{tmp_path}"
    check = check_site("tight", environ)
    assert check.problems[0].startswith("gpu, layout het, container none: ")
    assert "time_limit: 00:30:00 asked, partition batch allows 10" in " ".join(check.problems)


def test_what_linters_find(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(
        "schema: exaslurm/site/v1\nname: odd\nextends: generic\nprologue: ['if true']\n"
    )
    environ["EXASLURM_SITE_CONFIG"] += f":{tmp_path}"
    problems = check_site("odd", environ).problems
    assert any("syntax error" in line for line in problems)
    assert not any(str(tmp_path) in line for line in problems)
