"""The measurement as a job step would run it: a process for each node, one directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exaslurm.core.codec import loads
from exaslurm.errors import ExitCode, HeadTimeout, UserError
from exaslurm.fabric.__main__ import main, parse, run
from exaslurm.fabric.measure import Measured
from exaslurm.fabric.meeting import Meeting
from exaslurm.fabric.perftest import RdmaMeasured
from exaslurm.fabric.probe import NodeResult, PairResult, Peer
from exaslurm.fabric.report import SHOWN, ProbeReport, report_text

ROOT = Path(__file__).resolve().parents[2]

# Two nodes with an interface each, and a cable between them; $1 runs on the first one's side of
# it, $2 on the second one's.
TWO_NODES = """
set -e
unshare --net sleep 60 & other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add veth0 type veth peer name veth0 netns $other
ip addr add 10.9.0.1/24 dev veth0; ip link set veth0 up
nsenter -t $other -n ip addr add 10.9.0.2/24 dev veth0
nsenter -t $other -n ip link set veth0 up
bash -c "$1"
nsenter -t $other -n bash -c "$2"
shift 2
SLURMD_NODENAME=n1 nsenter -t $other -n "$@" --rank 1 & second=$!
SLURMD_NODENAME=n0 "$@" --rank 0 || code=$?
wait $second
exit ${code:-0}
"""
NO_NEW_CONNECTIONS = (
    "nft add table ip f; nft add chain ip f i '{ type filter hook input priority 0; }'; "
    "nft add rule ip f i 'tcp flags & (syn|ack) == syn drop'"
)


def two_nodes(
    tmp_path: Path, first: str, second: str, *more: str
) -> subprocess.CompletedProcess[str]:
    """The measurement between two network namespaces."""
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    for tool in {"unshare", "nsenter", "ip", *first.split()[:1], *second.split()[:1]}:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if subprocess.run([*unshare, "bash", "-c", first or "true"], capture_output=True).returncode:
        pytest.skip("this host lets nobody make such network namespaces")
    command = [
        sys.executable, "-m", "exaslurm.fabric", "--meet", str(tmp_path), "--run", "r",
        "--interface", "veth*", "--nodes", "2", "--json", *more,
    ]  # fmt: skip
    return subprocess.run(
        [*unshare, "bash", "-c", TWO_NODES, "bash", first or "true", second or "true", *command],
        capture_output=True, text=True, timeout=90, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_two_nodes_with_networks_of_their_own(tmp_path: Path) -> None:
    # The cable carries 100 Mbit/s from the first node. (At first there is only loopback to try.)
    slow = "tc qdisc add dev $(ip -br link | grep -o ^veth0 || echo lo) root tbf rate 100mbit "
    done = two_nodes(tmp_path, slow + "burst 64kb latency 50ms", "")
    assert done.returncode == 0, done.stderr
    report = loads(ProbeReport, done.stdout, where="stdout")
    assert [(node.node, node.address) for node in report.nodes] == [
        ("n0", "10.9.0.1"), ("n1", "10.9.0.2"),
    ]  # fmt: skip
    ((_, _, measured),) = report.measured
    assert 0.05 < measured.gbps_out < 0.15  # what the cable lets through
    assert measured.gbps_in > 0.3
    assert 1 < measured.rtt_us < 50_000
    assert list(tmp_path.iterdir()) == []  # nothing is left


@pytest.mark.parametrize("blocked", [0, 1])
def test_a_firewall_in_one_direction(tmp_path: Path, blocked: int) -> None:
    """Which direction is closed is told, and the pair is measured if the other one is enough."""
    rules = ["", ""]
    rules[blocked] = NO_NEW_CONNECTIONS
    done = two_nodes(tmp_path, *rules, "--roll-call-s", "2")
    assert done.returncode == ExitCode.NOT_READY, done.stderr
    report = loads(ProbeReport, done.stdout, where="stdout")
    caller = 1 - blocked
    assert report.nodes[caller].unreachable == ((f"n{blocked}", "no answer in time"),)
    assert report.nodes[blocked].unreachable == ()
    assert report.failures == [f"n{caller} cannot reach n{blocked}: no answer in time"]
    assert len(report.measured) == (1 if caller == 1 else 0)


def loopback(tmp_path: Path, nodes: int, *more: str) -> list[int]:
    """Exit codes of all nodes of a run on this host's loopback interface."""
    codes = [-1] * nodes

    def node(rank: int) -> None:
        codes[rank] = main(
            ["--meet", str(tmp_path), "--interface", "loopback", *more],
            {
                "SLURMD_NODENAME": f"n{rank}", "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(nodes), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
            },
        )  # fmt: skip

    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return codes


def test_three_tasks_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loopback(tmp_path, 3) == [0, 0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 nodes, 3 pairs measured"
    assert lines[1].startswith("round trip: median ")
    assert list(tmp_path.iterdir()) == []


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loopback(tmp_path, 2, "--json", "--perftest") == [0, 0]
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["schema"] == "exaslurm/fabric-probe/1"
    assert [node["node"] for node in data["nodes"]] == ["n0", "n1"]
    assert data["nodes"][0]["pairs"][0]["measured"]["rdma"] is None
    assert "not installed" in captured.err or "no active RDMA port" in captured.err


def test_a_node_that_does_not_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--meet", str(tmp_path), "--interface", "loopback", "--run", "x", "--roll-call-s",
             "0.3", "--nodes", "2", "--rank", "0"]  # fmt: skip
    assert main(words, {"SLURMD_NODENAME": "n0"}) == ExitCode.INTERNAL
    assert "1 of 2 nodes did not come" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "environ", "message"),
    [
        ([], {}, "SLURM_PROCID is not set"),
        (["--rank", "0"], {}, "SLURM_NTASKS is not set"),
        (["--rank", "2", "--nodes", "2"], {}, "rank 2 is none of 2 nodes"),
        (["--rank", "0", "--nodes", "2", "--interface", "loopback"], {"SLURM_JOB_ID": "1"},
         "there is no Slurm step"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    words: list[str], environ: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run(parse(["--meet", str(tmp_path), *words]), environ)


def test_the_meeting_is_private_and_has_one_key(tmp_path: Path) -> None:
    one, two = (Meeting(tmp_path / "m", 2) for _ in range(2))
    assert one.key() == two.key()
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "m" / "key").stat().st_mode & 0o777 == 0o600
    one.arrive(0, Peer(name="n0", address="10.0.0.1", port=1))
    with pytest.raises(HeadTimeout, match=r"1 of 2 nodes did not come.*1\.peer"):
        one.peers(timeout_s=0.1)
    two.arrive(1, Peer(name="n1", address="10.0.0.2", port=2))
    assert [peer.name for peer in one.peers(timeout_s=1)] == ["n0", "n1"]
    (tmp_path / "m" / "note").touch()  # somebody else's
    one.close()
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["note"]


def measured(rtt_us: float, gbps: float, **more: float) -> Measured:
    rdma = RdmaMeasured(latency_us=1.1, latency_p99_us=1.2, gbps=more["rdma"]) if more else None
    return Measured(
        rtt_us=rtt_us, rtt_p99_us=2 * rtt_us, gbps_out=gbps, gbps_in=gbps + 1, rdma=rdma
    )


def test_pairs_that_stand_out_are_named() -> None:
    pairs = [PairResult(peer=f"n{n}", measured=measured(20.0 + n, 30.0)) for n in range(1, 8)]
    pairs.append(PairResult(peer="n8", measured=measured(90.0, 8.0)))
    nodes = (
        NodeResult(node="n0", rank=0, address="10.0.0.1", pairs=tuple(pairs)),
        NodeResult(
            node="n1", rank=1, address="10.0.0.2", unreachable=(("n2", "no answer in time"),),
            pairs=(PairResult(peer="n2", error="no connection"),
                   PairResult(peer="n3", error="the connection ended")),
        ),
    )  # fmt: skip
    text = report_text(ProbeReport(nodes=nodes))
    assert text.splitlines() == [
        "2 nodes, 8 pairs measured",
        "round trip: median 24.5 us (21 to 90)",
        "  n0 - n8: 90 us",
        "round trip, p99: median 49 us (42 to 180)",
        "  n0 - n8: 180 us",
        "one TCP stream: median 30 Gbit/s (8 to 30)",
        "  n0 - n8: 8 Gbit/s",
        "failed: n1 cannot reach n2: no answer in time",
        "failed: n1 - n3: the connection ended",
    ]


def test_rdma_and_long_lists() -> None:
    one = NodeResult(
        node="n0", rank=0, address="a",
        pairs=(PairResult(peer="n1", measured=measured(20.0, 30.0, rdma=197.2)),),
        unreachable=tuple((f"n{n}", "Connection refused") for n in range(SHOWN + 3)),
    )  # fmt: skip
    lines = report_text(ProbeReport(nodes=(one,))).splitlines()
    assert "RDMA write: median 197.2 Gbit/s (197.2 to 197.2)" in lines
    assert lines[-1] == "failed: 3 more"
    assert report_text(ProbeReport(nodes=())) == "0 nodes, 0 pairs measured"
