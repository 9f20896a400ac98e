"""A recorded machine: QDR InfiniBand whose classic counters have been full for long."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from exaslurm.core.fabric import fabric_of, usable_ports
from exaslurm.fabric.counters import read_port
from exaslurm.fabric.figures import Sampler
from exaslurm.topo.sysfs import read_sysfs

ARCHIVE = "topologies/40intel64-2g2n4c+pcilocality.tar.bz2"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = os.environ.get("EXASLURM_DATA")
    if not data:
        pytest.skip("EXASLURM_DATA is not set: no recorded machines")
    directory = tmp_path_factory.mktemp("recorded")
    with tarfile.open(Path(data) / ARCHIVE) as tar:
        wanted = [member for member in tar.getmembers() if "/cpu" not in member.name]
        # Python before 3.11.4 has no filters.
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(directory, wanted, **how)
    (found,) = directory.iterdir()
    return found


def test_what_a_real_node_counts(root: Path) -> None:
    hcas = read_sysfs(root / "sys", root / "proc").hcas
    assert [hca.name for hca in hcas] == ["eth0", "eth1", "eth2", "eth3", "qib0"]
    assert fabric_of(hcas) == "infiniband"
    ((qib, port),) = usable_ports(hcas)
    assert (qib.name, port.rate_gbps, qib.interfaces) == ("qib0", 40.0, ("ib0",))
    ((_, ethernet),) = usable_ports(hcas, ["eth*"])  # the others are down
    assert ethernet.rate_gbps == 1.0
    ib = read_port(qib, port, root / "sys")
    assert (ib["port_xmit_data"], ib["port_rcv_data"], ib["port_xmit_wait"]) == (
        2**32 - 1, 2**32 - 1, 0,
    )  # fmt: skip
    assert read_port(hcas[0], ethernet, root / "sys")["tx_bytes"] == 2618105901078


def test_counters_that_are_full_are_said_to_be(root: Path) -> None:
    hcas = read_sysfs(root / "sys", root / "proc").hcas
    sampler = Sampler(usable_ports(hcas), root / "sys")
    assert sampler.sample() == ()
    (found,) = sampler.sample()
    assert (found.xmit_gbps, found.rcv_gbps) == (None, None)
    assert [note.split()[0] for note in found.notes] == ["port_xmit_data", "port_rcv_data"]
    # The others have not reached their ends.
    assert (found.congestion, found.errors_per_s, found.discards_per_s) == (0.0, 0.0, 0.0)
    assert found.state == "ACTIVE"
