"""The engine of a replica, by the kind that its model asks for."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.plan import Plan
from exaslurm.engines import vllm
from exaslurm.engines.middleware import KEY_VARIABLE, REPLICA_VARIABLE
from exaslurm.engines.place import EnginePlace


def build_engine(
    replica: ReplicaBinding,
    plan: Plan,
    model_path: str,
    served_names: Sequence[str],
    place: EnginePlace,
) -> ExecSpec:
    """How to start the engine of a replica; errors as of ``vllm.build``."""
    model = plan.model(replica.model)
    if model.engine.kind == "vllm":
        return vllm.build(replica, plan, model_path, served_names, place)
    return ExecSpec(
        argv=(
            plan.node.python,
            *("-m", "exaslurm.engines.simulated"),
            *("--host", replica.address, "--port", str(replica.port)),
            *("--served-model-name", *served_names),
            *vllm.option_argv({"shutdown-timeout": plan.timeouts.drain_s, **model.engine.args}),
            *model.engine.extra_args,
        ),
        env={"PYTHONUNBUFFERED": "1", REPLICA_VARIABLE: replica.id, **model.engine.env},
        secret_env={KEY_VARIABLE: str(place.key_file)},
        cores=replica.cores,
        mem_nodes=replica.mem_nodes,
        log=str(place.log),
    )
