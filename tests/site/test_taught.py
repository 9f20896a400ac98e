"""Slurm's files for a controller that is taught a site, as the acceptance line writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exaslurm.site.load import load_site
from exaslurm.site.model import Site

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from acceptance.placement import taught  # noqa: E402

PLACE = taught.Place("ctl", "10.0.0.1", 7900, "/shared/x", "/var/tmp/x", (24, 11))


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    environ = {"EXASLURM_SITE_CONFIG": str(ROOT / "site_configs"), "HOME": "/nonexistent"}
    return load_site(request.param, environ)


def lines(site: Site, name: str, start: str) -> list[str]:
    return [line for line in taught.files(site, PLACE)[name].splitlines() if line.startswith(start)]


@pytest.mark.parametrize("site", ["frontier"], indirect=True)
def test_nodes_partitions_and_reserved_cores(site: Site) -> None:
    (node,) = lines(site, "slurm.conf", "NodeName")
    words = node.split()
    assert words[0] == "NodeName=gpu-n[1-16]"
    assert {"CPUs=64", "CoreSpecCount=8", "Gres=gpu:8", "Feature=nvme", "State=CLOUD"} <= {*words}
    batch, extended = lines(site, "slurm.conf", "PartitionName")
    assert "Default=YES MaxTime=12:00:00 MaxNodes=9472" in batch
    assert "MaxTime=24:00:00 MaxNodes=64" in extended
    assert lines(site, "gres.conf", "") == ["NodeName=gpu-n[1-16] Name=gpu Count=8"]


@pytest.mark.parametrize("site", ["vista"], indirect=True)
def test_a_site_without_gres_and_memory(site: Site) -> None:
    text = "\n".join(taught.files(site, PLACE).values())
    assert "GresTypes" not in text
    assert "Gres=" not in text
    lua = taught.job_submit_lua(site)
    assert 'slurm.log_user("--mem is refused here")' in lua
    assert 'slurm.log_user("--gres is refused here")' in lua
    assert 'slurm.log_user("--time is missing")' in lua
    assert lua.count("  if ") == lua.count("  end\n")


@pytest.mark.parametrize("site", ["perlmutter"], indirect=True)
def test_nodes_of_no_partition_are_told_apart_by_features(site: Site) -> None:
    assert [
        line.split("Feature=")[1].split()[0] for line in lines(site, "slurm.conf", "NodeN")
    ] == [
        "gpu",
        "gpu,hbm80g",
    ]
    (only,) = lines(site, "slurm.conf", "PartitionName")
    assert only.startswith("PartitionName=everything Nodes=gpu-n[1-16],gpu80-n[1-16] ")


@pytest.mark.parametrize("site", ["snellius"], indirect=True)
def test_partitions_that_want_gpus(site: Site) -> None:
    assert "partition gpu_h100 wants GPUs asked for" in taught.job_submit_lua(site)


@pytest.mark.parametrize("site", ["generic"], indirect=True)
def test_what_is_not_known_is_plenty(site: Site) -> None:
    cpu, gpu = lines(site, "slurm.conf", "NodeName")
    assert ("Gres=" in cpu, "Gres=gpu:8" in gpu, "CPUs=256" in gpu) == (False, True, True)
