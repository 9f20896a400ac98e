"""What a node needs to start a container."""

from __future__ import annotations

from pathlib import Path

from exaslurm.core.checks import Check
from exaslurm.doctor.needs import needs_of
from exaslurm.preflight.container import check_container
from exaslurm.preflight.host import Host
from exaslurm.site.load import load_site


def checked(host: Host, command: str | None, image: str) -> dict[str, Check]:
    return {check.id: check for check in check_container(host, command, image)}


def test_on_a_living_host(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    host = Host(name="n1", environ={"PATH": str(tmp_path)})
    found = checked(host, "apptainer", str(tmp_path / "apptainer"))
    assert {check.outcome for check in found.values()} == {"pass"}
    missing = checked(host, "singularity", str(tmp_path / "vllm.sif"))
    assert missing["container.runtime"].outcome == "fail"
    assert "'singularity' is not on PATH" in missing["container.runtime"].value
    assert missing["container.image"].outcome == "fail"


def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    found = checked(Host(name="n1"), None, "vllm")
    assert {check.outcome for check in found.values()} == {"skip"}
    recorded = checked(Host(name="n1", root=tmp_path, recorded=True), "apptainer", "/x.sif")
    assert recorded["container.runtime"].outcome == "skip"
    assert recorded["container.image"].outcome == "fail"


def test_needs_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "schema: exaslurm/site/v1\nname: s\nextends: generic\n"
        "container: {runtime: apptainer, image: $HOME/vllm.sif}\n"
    )
    environ = {"EXASLURM_SITE_CONFIG": str(tmp_path), "HOME": "/home/ada", "USER": "ada"}
    needs = needs_of(load_site("s", environ), environ)
    assert needs.container == ("apptainer", "/home/ada/vllm.sif")
    assert not needs.vllm
    assert not needs.ray
    plain = needs_of(load_site("generic", environ), environ)
    assert plain.container is None
    assert plain.vllm
