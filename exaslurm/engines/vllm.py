"""``vllm serve`` for one replica: argument list, environment, place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.plan import ModelPlan, Option, Plan
from exaslurm.engines.caches import ReplicaDirs
from exaslurm.engines.devices import device_env
from exaslurm.engines.gang import BACKEND, gang_argv, gang_env, internal_port
from exaslurm.engines.gang import MANAGED as GANG_MANAGED
from exaslurm.engines.middleware import KEY_VARIABLE, REPLICA_VARIABLE
from exaslurm.engines.network import network_env
from exaslurm.engines.options import long_options
from exaslurm.engines.place import EnginePlace
from exaslurm.engines.threads import numa_argv, thread_env
from exaslurm.errors import PlanError, ReplicaError

MIDDLEWARE = "exaslurm.engines.middleware.KeyMiddleware"
GIB = 1 << 30

# Given by the binding, the plan's own keys or the guard; a second value would contradict them.
MANAGED = GANG_MANAGED | frozenset(
    {
        "--host",
        "--port",
        "--uds",
        "--served-model-name",
        "--model",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--api-key",
    }
)


def executable(python: str) -> str:
    """The ``vllm`` command of the environment that ``python`` belongs to."""
    return str(Path(python).parent / "vllm")


def build(
    replica: ReplicaBinding,
    plan: Plan,
    model_path: str,
    served_names: Sequence[str],
    place: EnginePlace,
) -> ExecSpec:
    """How to start the engine of a replica.

    Raises PlanError for options that exaslurm sets itself, ReplicaError for what this version
    cannot serve.
    """
    model = plan.model(replica.model)
    engine = model.engine
    if any(shard.lora for shard in model.shards if shard.name == replica.shard):
        raise ReplicaError(
            f"shard {replica.shard!r} of model {model.name!r} asks for a LoRA adapter, which "
            "this version does not serve",
            remedy="remove `lora` from the shard",
        )
    argv = [
        executable(plan.node.python),
        "serve",
        model_path,
        *("--host", replica.address, "--port", str(replica.port)),
        *("--served-model-name", *served_names),
        *("--middleware", MIDDLEWARE),
        *_parallel(model),
        *gang_argv(replica, model),
        *_options(model, plan),
        *_numa(replica, model, place),
        *engine.extra_args,
    ]
    set_env, unset = device_env(engine.device, replica.gpus)
    env = {
        **set_env,
        **network_env(
            engine.device,
            replica.address,
            place.interface,
            ports=replica.hca.split(",") if replica.hca else (),
            hcas=place.hcas,
            fabric=plan.node.fabric,
            nodes=model.nodes,
        ),
        **ReplicaDirs.of(place.node_dir, replica.id).env(),
        **thread_env(replica, model, place.topology),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # A base for the engine's internal ports, not its HTTP port.
        "VLLM_PORT": str(internal_port(replica)),
        "PYTHONUNBUFFERED": "1",
        REPLICA_VARIABLE: replica.id,
        **gang_env(model, place),
    }
    if Path(model_path).is_absolute():
        env["HF_HUB_OFFLINE"] = "1"
    env.update(engine.env)
    return ExecSpec(
        argv=tuple(argv),
        env=env,
        # With VLLM_API_KEY set (a user's login profile) vLLM would ask for that one too.
        unset=(*unset, "VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "RAY_ADDRESS"),
        secret_env={KEY_VARIABLE: str(place.key_file)},
        cores=replica.cores,
        mem_nodes=replica.mem_nodes,
        log=str(place.log),
        cwd=str(ReplicaDirs.of(place.node_dir, replica.id).tmp),
    )


def cpu_defaults(model: ModelPlan) -> dict[str, Option]:
    """What vLLM needs on CPUs; measured with 0.32.

    Without an explicit KV size it takes 0.92 of the *node's* memory; compiling costs more than a
    minute at every start (its cache does not load again); few CPUs have bfloat16 instructions. A
    context that does not fit the KV cache is shortened rather than refused.
    """
    kv_bytes = max(int(model.slot.mem_gib * GIB / 8), GIB // 2)
    defaults: dict[str, Option] = {
        "dtype": "float32",
        "enforce-eager": True,
        "kv-cache-memory-bytes": kv_bytes,
        "max-model-len": "auto",
    }
    if model.tensor * model.pipeline == 1:
        defaults["distributed-executor-backend"] = "uni"
    return defaults


def option_argv(options: Mapping[str, Option | None]) -> list[str]:
    """``{name: value}`` as arguments; true or nothing is a bare flag, false is ``--no-<name>``."""
    argv: list[str] = []
    for name, value in options.items():
        if value is None or value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv.append(f"--no-{name}")
        else:
            argv += [f"--{name}", str(value)]
    return argv


def _options(model: ModelPlan, plan: Plan) -> list[str]:
    """The user's options, and defaults for those that the user does not mention."""
    engine = model.engine
    given = {name.lstrip("-").replace("_", "-"): value for name, value in engine.args.items()}
    mentioned = {option.replace("--no-", "--", 1) for option in long_options(engine.extra_args)}
    mentioned |= {f"--{name.removeprefix('no-')}" for name in given}
    # Of a replica on one node the user may say how its ranks are run.
    managed = MANAGED | {BACKEND} if model.nodes > 1 else MANAGED
    for option in sorted(mentioned & managed):
        raise PlanError(
            f"model {model.name!r}: engine option {option} is set by exaslurm",
            remedy="use the keys of the cluster spec (parallel, shards, ...) instead",
        )
    defaults: dict[str, Option] = {
        # 0 (vLLM's default) would cut requests off at a stop, and may never end the process.
        "shutdown-timeout": max(1, int(plan.timeouts.drain_s)),
        # The agent and the router ask for these every second or so; the log is for the rest.
        "disable-access-log-for-endpoints": "/health,/metrics",
    }
    if engine.device == "cpu":
        defaults.update(cpu_defaults(model))
    left = {name: value for name, value in defaults.items() if f"--{name}" not in mentioned}
    return option_argv({**left, **given})


def _parallel(model: ModelPlan) -> list[str]:
    argv: list[str] = []
    if model.tensor > 1:
        argv += ["--tensor-parallel-size", str(model.tensor)]
    if model.pipeline > 1:
        argv += ["--pipeline-parallel-size", str(model.pipeline)]
    return argv


def _numa(replica: ReplicaBinding, model: ModelPlan, place: EnginePlace) -> list[str]:
    if not place.numactl or model.engine.device not in ("cuda", "rocm") or model.nodes > 1:
        return []
    given = {f"--{name.lstrip('-').replace('_', '-')}" for name in model.engine.args}
    mentioned = given | set(long_options(model.engine.extra_args))
    gpus = {gpu.visible_id: gpu for gpu in place.gpus}
    return numa_argv(replica, model, place.topology, gpus, mentioned)
