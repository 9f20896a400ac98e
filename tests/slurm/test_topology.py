"""Switches above nodes, from every place that tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.slurm import topology
from exaslurm.slurm.client import Slurm

# As Slurm 22.05 and 24.11 print a tree of three levels.
SCONTROL = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=c[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=c[3-4]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=c5
SwitchName=group1 Level=1 LinkSpeed=1 Nodes=c[1-4] Switches=leaf[1-2]
SwitchName=group2 Level=1 LinkSpeed=1 Nodes=c5 Switches=leaf3
SwitchName=spine Level=2 LinkSpeed=1 Nodes=c[1-5] Switches=group[1-2]
"""
CONF = """\
# the cluster
SwitchName=leaf1 Nodes=c1,c2   # two
switchname=leaf2 \\
    nodes=c[3-4]
SwitchName=spine Switches=leaf[1-2]
"""


def test_a_tree_as_the_controller_prints_it() -> None:
    switches = topology.parse_topology(SCONTROL)
    assert switches["group1"] == {"leaf1", "leaf2"}
    found = topology.paths(switches, ["c1", "c4", "c5", "c9"])
    assert found == {
        "c1": ("spine", "group1", "leaf1"),
        "c4": ("spine", "group1", "leaf2"),
        "c5": ("spine", "group2", "leaf3"),
    }


def test_topology_conf() -> None:
    found = topology.paths(topology.parse_topology(CONF), ["c2", "c3"])
    assert found == {"c2": ("spine", "leaf1"), "c3": ("spine", "leaf2")}


def test_blocks() -> None:
    text = "BlockName=b1 BlockIndex=0 Nodes=n[1-18]\nBlockName=b2 BlockIndex=1 Nodes=n19\n"
    assert topology.paths(topology.parse_topology(text), ["n3", "n19"]) == {
        "n3": ("b1",),
        "n19": ("b2",),
    }


def test_one_of_several_spines_cuts_nobody_off() -> None:
    text = "SwitchName=l1 Nodes=n1\nSwitchName=s1 Switches=l1\nSwitchName=s2 Switches=l1\n"
    assert topology.paths(topology.parse_topology(text), ["n1"]) == {"n1": ("l1",)}


def test_a_map_that_runs_in_a_circle_ends() -> None:
    switches = topology.from_map({"a": "b", "b": "a,n1"})
    assert len(topology.paths(switches, ["n1"])["n1"]) <= 16


@pytest.mark.parametrize(
    "text", ["", "No topology information available", "SwitchName= Nodes=", "x=y"]
)
def test_nothing_is_made_up(text: str) -> None:
    assert topology.parse_topology(text) == {}


@pytest.mark.parametrize(
    ("address", "pattern", "path"),
    [
        ("s0.s1.n", "switch.switch.node", ("s0", "s1")),
        ("[s1-2].l1.n", "switch.switch.node", ("l1",)),
        ("b1.n", "block.node", ("b1",)),
        ("n", "node", ()),
        ("", "", ()),
        ("s.n", "switch", ()),
    ],
)
def test_the_address_of_a_task(address: str, pattern: str, path: tuple[str, ...]) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert topology.address_path(environ) == path


class TestLookUp:
    """The site's map first, then the controller, then the file."""

    @pytest.fixture
    def bin_dir(self, tmp_path: Path) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        return folder

    def scontrol(self, bin_dir: Path, answer: str, code: int = 0) -> None:
        (bin_dir / "answer").write_text(answer)
        script = bin_dir / "scontrol"
        script.write_text(f"#!/bin/sh\ncat {bin_dir}/answer\nexit {code}\n")
        script.chmod(0o755)

    def look_up(self, bin_dir: Path, site: dict[str, str] | None = None, conf: str = "") -> object:
        environ = {"PATH": f"{bin_dir}:/usr/bin:/bin", "SLURM_CONF": conf}
        slurm = Slurm(environ, timeout_s=10, pause_s=0.01)
        return topology.look_up(slurm, ["c1", "c3"], site=site or {}, environ=environ)

    def test_the_controller(self, bin_dir: Path) -> None:
        self.scontrol(bin_dir, SCONTROL)
        assert self.look_up(bin_dir) == {
            "c1": ("spine", "group1", "leaf1"),
            "c3": ("spine", "group1", "leaf2"),
        }

    def test_the_sites_map(self, bin_dir: Path) -> None:
        self.scontrol(bin_dir, SCONTROL)
        site = {"rack1": "c[1-2]", "rack2": "c[3-4]", "row": "rack[1-2]"}
        assert self.look_up(bin_dir, site) == {"c1": ("row", "rack1"), "c3": ("row", "rack2")}

    @pytest.mark.parametrize(
        ("answer", "code"), [("No topology information available", 0), ("", 1)]
    )
    def test_the_file_where_the_controller_has_nothing(
        self, bin_dir: Path, tmp_path: Path, answer: str, code: int
    ) -> None:
        self.scontrol(bin_dir, answer, code)
        (tmp_path / "topology.conf").write_text(CONF)
        found = self.look_up(bin_dir, conf=str(tmp_path / "slurm.conf"))
        assert found == {"c1": ("spine", "leaf1"), "c3": ("spine", "leaf2")}

    def test_without_slurm(self, bin_dir: Path, tmp_path: Path) -> None:
        found = topology.look_up(
            Slurm({"PATH": str(bin_dir)}), ["nobodys-node"], site={},
            environ={"SLURM_CONF": str(tmp_path / "slurm.conf")},
        )  # fmt: skip
        assert found == {}

    def test_features(self, bin_dir: Path) -> None:
        self.scontrol(
            bin_dir,
            "NodeName=c1 Arch=x86_64 AvailableFeatures=nvme,big,off ActiveFeatures=nvme,big X=1\n"
            "NodeName=c2 AvailableFeatures=(null) ActiveFeatures=(null)\n",
        )
        slurm = Slurm({"PATH": f"{bin_dir}:/usr/bin:/bin"}, pause_s=0.01)
        assert topology.look_up_features(slurm, ["c1", "c2"]) == {"c1": ("nvme", "big"), "c2": ()}
        self.scontrol(bin_dir, "slurm_load_node error", 1)
        assert topology.look_up_features(slurm, ["c1"]) == {}
