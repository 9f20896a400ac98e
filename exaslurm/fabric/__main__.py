"""``srun ... python -m exaslurm.fabric --meet DIR``: measure the network between all nodes.

One task a node. The first one prints the result: text, or JSON with ``--json``. Exit code 6 if a
way is closed or a pair could not be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core.codec import dumps
from exaslurm.core.fabric import usable_ports
from exaslurm.errors import ExaslurmError, ExitCode, UserError
from exaslurm.fabric import perftest
from exaslurm.fabric.measure import Effort, Rdma
from exaslurm.fabric.meeting import Meeting
from exaslurm.fabric.probe import Peer, Probe
from exaslurm.fabric.report import ProbeReport, report_text
from exaslurm.facts.address import node_address
from exaslurm.facts.collect import node_name
from exaslurm.topo.sysfs import read_sysfs

_PERFTEST_PORT = 18515


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m exaslurm.fabric", description=__doc__)
    parser.add_argument(
        "--meet",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory that all nodes see; each run makes one of its own in it",
    )
    parser.add_argument(
        "--interface",
        help="network interface or pattern, such as hsn* (default: the address of the node's name)",
    )
    parser.add_argument("--host-suffix", default="", help="added to the node's name")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any)")
    parser.add_argument(
        "--roll-call-s",
        type=float,
        default=30.0,
        help="how long to wait for nodes and to try to reach them",
    )
    parser.add_argument(
        "--perftest",
        action="store_true",
        help="ib_write_lat and ib_write_bw too; they open a port without a key",
    )
    parser.add_argument(
        "--hca",
        action="append",
        default=[],
        metavar="PATTERN",
        help="device for --perftest (default: the first fast one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", type=int, help="default: SLURM_PROCID")
    parser.add_argument("--nodes", type=int, help="default: SLURM_NTASKS")
    parser.add_argument("--run", help="name of the run (default: Slurm's job and step)")
    return parser.parse_args(argv)  # fmt: skip


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Take part; the first node reports. Returns the exit code."""
    rank = _number(options.rank, environ, "SLURM_PROCID", "--rank")
    nodes = _number(options.nodes, environ, "SLURM_NTASKS", "--nodes")
    if not 0 <= rank < nodes:
        raise UserError(f"rank {rank} is none of {nodes} nodes")
    where = node_address(options.interface, node_name(environ), options.host_suffix)
    meeting = Meeting(options.meet / _run_name(options.run, environ), nodes)
    rdma = _rdma(options) if options.perftest else None
    probe = Probe(where.address, meeting.key(), port=options.port, rdma=rdma)
    try:
        peer = Peer(name=node_name(environ), address=where.address, port=probe.port)
        meeting.arrive(rank, peer)
        peers = meeting.peers(timeout_s=options.roll_call_s)
        result = probe.run(peers, rank, roll_call_s=options.roll_call_s)
        meeting.hand_in(result)
        return _report(meeting, options) if rank == 0 else ExitCode.OK
    finally:
        probe.close()


def _report(meeting: Meeting, options: argparse.Namespace) -> ExitCode:
    # The others end with the same round, unless a partner of theirs does not answer any more.
    report = ProbeReport(
        nodes=tuple(meeting.results(timeout_s=options.roll_call_s + Effort().turn_s))
    )
    meeting.close()
    print(dumps(report, indent=2) if options.json else report_text(report))
    return ExitCode.NOT_READY if report.failures else ExitCode.OK


def _rdma(options: argparse.Namespace) -> Rdma | None:
    if not perftest.installed():
        print(f"{perftest.LATENCY} and {perftest.BANDWIDTH} are not installed", file=sys.stderr)
        return None
    verbs = [
        (hca, port)
        for hca, port in usable_ports(read_sysfs().hcas, options.hca)
        if hca.fabric in ("infiniband", "roce", "omnipath")
    ]
    if not verbs:
        print("no active RDMA port", file=sys.stderr)
        return None
    hca, port = verbs[0]
    return Rdma(device=hca.name, ib_port=port.number, tcp_port=_PERFTEST_PORT)


def _number(given: int | None, environ: Mapping[str, str], variable: str, option: str) -> int:
    text = environ.get(variable, "")
    if given is not None:
        return given
    if not text.isdigit():
        raise UserError(f"{variable} is not set: start it with srun, or give {option}")
    return int(text)


def _run_name(given: str | None, environ: Mapping[str, str]) -> str:
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if given is not None:
        return given
    if not job or not step:
        raise UserError("there is no Slurm step: give the run a name with --run")
    return f"probe-{job}.{step}"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The process; an error of ours is one line."""
    options = parse(argv)
    try:
        return run(options, environ)
    except ExaslurmError as error:
        print(f"error: {error}" + (f" ({error.remedy})" if error.remedy else ""), file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:], os.environ))
