"""What a node runs to be part of its cell's Ray: argv and environment of ``ray start``.

Checked against ``ray start --help`` and the sources of Ray 2.60.0. Every port is given, since a
port that Ray picks by itself may be another user's; addresses, CPUs, GPUs and memory are given,
since Ray counts the machine and not what Slurm granted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core import ports
from exaslurm.core.cell import RayTarget
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.fabric import usable_ports
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import Plan
from exaslurm.errors import PreflightFailed
from exaslurm.rundir import RunDir

# sun_path of a Unix socket, less its closing zero byte.
SOCKET_PATH_MAX = 107
# <temp dir>/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.10
_SESSION_SOCKET = "/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.10"

NODE_LABEL = "exa-node"
SLOT_RESOURCE = "exa_slot"
IB_RESOURCE = "ib_gbps"

_MIB = 1024 * 1024
# Ray keeps some memory for its own actors and tasks; without this it takes 70 % of the machine's.
_MIN_MEMORY_MIB = 256

# Ray's waits are made for an idle cloud machine; a node that loads Python from a busy parallel
# file system, or shares two cores with seven engines, needs longer.
_PATIENCE = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
}
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    # Otherwise the first driver on a node makes Ray start one Python worker per CPU at once.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_START_HOOK": "exaslurm.raycluster.hook.trim",
    "PYTHONUNBUFFERED": "1",
}

# Which variable names a vendor's GPUs to Ray, and which must not be set beside it. Ray >= 2.45
# refuses ROCR_VISIBLE_DEVICES, which is what Slurm sets for AMD.
_VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")),
    "amd": ("HIP_VISIBLE_DEVICES", ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "intel": ("ONEAPI_DEVICE_SELECTOR", ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")),
}


def head_command(
    plan: Plan, facts: NodeFacts, run_dir: RunDir, node_dir: Path, epoch: int
) -> ExecSpec:
    """``ray start --head`` on the cell's head node."""
    base = facts.port_base
    argv = [
        "--head",
        f"--port={base + ports.RAY_GCS}",
        "--include-dashboard=false",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={base + ports.RAY_DASHBOARD}",
        f"--ray-client-server-port={base + ports.RAY_CLIENT_SERVER}",
        # The monitor is the autoscaler, which has nothing to scale here.
        "--no-monitor",
    ]
    return _command(plan, facts, run_dir, node_dir, epoch, argv, role="head")


def worker_command(
    plan: Plan, facts: NodeFacts, target: RayTarget, run_dir: RunDir, node_dir: Path
) -> ExecSpec:
    """``ray start --address`` on another node. Run it once the GCS port accepts: it gives up
    soon otherwise."""
    argv = [f"--address={target.head_address}:{target.gcs_port}"]
    return _command(plan, facts, run_dir, node_dir, target.epoch, argv, role="worker")


def auth_env(run_dir: RunDir) -> dict[str, str]:
    """What makes a Ray process of this deployment ask for, and show, its token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(run_dir.ray_token)}


def temp_dir(node_dir: Path) -> Path:
    """Ray's directory below the node's; PreflightFailed if its sockets' paths would not fit."""
    path = node_dir / "ray"
    length = len(str(path)) + len(_SESSION_SOCKET)
    if length > SOCKET_PATH_MAX:
        raise PreflightFailed(
            f"Ray's sockets in {path} would have paths of up to {length} bytes, the kernel's "
            f"limit is {SOCKET_PATH_MAX}",
            remedy="set a shorter node.tmp in the site config, /tmp for instance",
        )
    return path


def node_labels(facts: NodeFacts, *, role: str, epoch: int) -> dict[str, str]:
    """The labels by which Ray work can choose this node."""
    labels = {**facts.labels, NODE_LABEL: facts.node, "role": role, "epoch": str(epoch)}
    return {_label_key(key): _label_value(value) for key, value in sorted(labels.items())}


def node_resources(facts: NodeFacts, *, slots: int, hcas: Sequence[str] = ()) -> dict[str, float]:
    """Numbers that Ray keeps books of, and nothing else: it neither measures nor enforces them.

    ``ib_gbps`` is what all usable ports of a high-speed fabric carry together, so that work which
    moves data can ask for its share.
    """
    found: dict[str, float] = {SLOT_RESOURCE: slots} if slots else {}
    total = sum(
        port.rate_gbps
        for hca, port in usable_ports(facts.topology.hcas, hcas)
        if hca.fabric != "ethernet"
    )
    return found | ({IB_RESOURCE: total} if total else {})


def _command(
    plan: Plan,
    facts: NodeFacts,
    run_dir: RunDir,
    node_dir: Path,
    epoch: int,
    first: list[str],
    *,
    role: str,
) -> ExecSpec:
    base = facts.port_base
    slots = 0 if role == "head" and plan.layout == "het" else _slots(plan)
    labels = node_labels(facts, role=role, epoch=epoch)
    store_mib = plan.ray.object_store_mib
    resources = json.dumps(node_resources(facts, slots=slots, hcas=plan.node.fabric.hcas))
    argv = (
        sys.executable, "-m", "ray.scripts.scripts", "start", *first,
        "--block",
        f"--node-ip-address={facts.address}",
        f"--node-name={facts.node}",
        f"--node-manager-port={base + ports.RAY_NODE_MANAGER}",
        f"--object-manager-port={base + ports.RAY_OBJECT_MANAGER}",
        f"--dashboard-agent-listen-port={base + ports.RAY_DASHBOARD_AGENT_HTTP}",
        f"--dashboard-agent-grpc-port={base + ports.RAY_DASHBOARD_AGENT_GRPC}",
        f"--runtime-env-agent-port={base + ports.RAY_RUNTIME_ENV_AGENT}",
        f"--metrics-export-port={base + ports.RAY_METRICS_EXPORT}",
        f"--min-worker-port={base + ports.RAY_WORKERS_FIRST}",
        f"--max-worker-port={base + ports.RAY_WORKERS_LAST}",
        f"--temp-dir={temp_dir(node_dir)}",
        f"--num-cpus={facts.cpus_granted or len(facts.cpus)}",
        f"--num-gpus={len(facts.gpus)}",
        f"--memory={max(facts.mem_mib - store_mib, _MIN_MEMORY_MIB) * _MIB}",
        f"--object-store-memory={store_mib * _MIB}",
        f"--resources={resources}",
        "--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    )  # fmt: skip
    env, unset = _gpu_env(facts)
    return ExecSpec(
        argv=argv,
        # What Ray's processes leave behind goes with the node's directory.
        env={**_PATIENCE, **_QUIET, **auth_env(run_dir), **env, "TMPDIR": str(node_dir)},
        unset=unset,
        cwd=str(node_dir),
    )


def _slots(plan: Plan) -> int:
    return min(ports.MAX_ENGINES, max((m.max_replicas_per_node for m in plan.models), default=0))


def _gpu_env(facts: NodeFacts) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The one variable that names the GPUs, and those that contradict it."""
    if not facts.gpus:
        return {}, ("ROCR_VISIBLE_DEVICES",)
    if facts.gpus[0].vendor not in _VISIBLE:
        return {}, ()
    variable, others = _VISIBLE[facts.gpus[0].vendor]
    ids = ",".join(gpu.visible_id for gpu in facts.gpus)
    if facts.gpus[0].vendor == "intel" and ":" not in ids:
        ids = "level_zero:" + ids
    return {variable: ids}, others


# Ray takes the syntax of Kubernetes labels (ray/_private/label_utils.py).
def _label_key(key: str) -> str:
    clean = re.sub(r"[^A-Za-z0-9_.-]", "-", key)[:63].strip("-_.")
    return clean or "label"


def _label_value(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", value)[:63].strip("-_.")
