"""The page on the network names what the code reads and sets."""

from __future__ import annotations

import re
from pathlib import Path

from exaslurm.core.fabric import XMIT_WAIT_BYTES
from exaslurm.core.topology import Hca, HcaPort
from exaslurm.engines.network import network_env
from exaslurm.fabric import figures
from exaslurm.site.fabric import Fabric

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/fabric.md").read_text()


def test_every_variable_is_on_the_page() -> None:
    port = HcaPort(number=1, state="ACTIVE", rate_gbps=200.0, link_layer="x")
    variables: set[str] = set()
    for hca in (
        Hca(name="mlx5_0", fabric="infiniband", ports=(port,)),
        Hca(name="cxi0", fabric="slingshot", ports=(port,)),
    ):
        variables |= set(
            network_env("cuda", "10.0.0.1", "x0", ports=(f"{hca.name}:1",), hcas=(hca,))
        )
    assert {name for name in variables if f"| `{name}` |" not in PAGE} == set()


def test_counters_on_the_page_are_read() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `(errors|discards|retr)", line)]
    named = set(re.findall(r"`([A-Za-z0-9_]+)`", " ".join(line.split("|")[2] for line in rows)))
    read = {*figures.ERRORS, *figures.DISCARDS, *figures.RETRANSMITS, "hw_counters"}
    assert len(named) > 15
    assert named <= read


def test_keys_of_the_site() -> None:
    assert set(Fabric.model_fields) == {"hcas", "env", "env_multi_node", "xmit_wait_bytes"}
    assert all(f"fabric.{key}" in PAGE or f"{key}:" in PAGE for key in Fabric.model_fields)
    assert Fabric().xmit_wait_bytes == XMIT_WAIT_BYTES == 8
