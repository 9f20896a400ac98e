"""What ``vllm serve`` is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.plan import EnginePlan, ModelSource, Plan
from exaslurm.engines.build import build_engine
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import PlanError, ReplicaError
from tests.tools import plans


def make_plan(*, tensor: int = 1, lora: str | None = None, **engine: Any) -> Plan:
    engine = {"kind": "vllm", "device": "cpu", **engine}
    model = plans.make_model(
        source=ModelSource(kind="path", value="/models/m"),
        engine=EnginePlan(**engine),
        tensor=tensor,
        cores=2,
        mem_gib=16.0,
        lora=lora,
    )
    return plans.make_plan(
        models=[model],
        cells=plans.make_cells(),
        node=plans.make_environment(python="/env/bin/python"),
        drain_s=30.0,
    )


def build(plan: Plan, node_dir: Path = Path("/nowhere"), **binding: Any) -> ExecSpec:
    place = EnginePlace(
        node_dir=node_dir, log=Path("/log"), key_file=Path("/key"), interface="hsn0",
    )  # fmt: skip
    replica: dict[str, Any] = {
        "id": "c000-r0000", "model": "m", "shard": "base", "node": "n1", "address": "10.0.0.1",
        "port": 20020, "slot": 0, "cores": (4, 5), "pinned": True, "mem_nodes": (1,), "gpus": (),
        "hca": None, **binding,
    }  # fmt: skip
    return build_engine(
        ReplicaBinding(**replica), plan, "/models/m", plan.models[0].shards[0].served_names, place
    )


def value(spec: ExecSpec, option: str) -> str:
    return spec.argv[spec.argv.index(option) + 1]


def test_cpu() -> None:
    spec = build(make_plan())
    assert spec.argv[:3] == ("/env/bin/vllm", "serve", "/models/m")
    assert value(spec, "--host") == "10.0.0.1"
    assert value(spec, "--port") == "20020"
    at = spec.argv.index("--served-model-name")
    assert spec.argv[at + 1 : at + 4] == ("m", "m:base", "--middleware")
    assert value(spec, "--dtype") == "float32"
    assert value(spec, "--kv-cache-memory-bytes") == str(2 << 30)
    assert value(spec, "--distributed-executor-backend") == "uni"
    assert value(spec, "--shutdown-timeout") == "30"
    assert value(spec, "--disable-access-log-for-endpoints") == "/health,/metrics"
    assert "--enforce-eager" in spec.argv
    assert spec.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "4,5"
    assert spec.env["OMP_NUM_THREADS"] == "2"
    assert spec.env["HF_HUB_OFFLINE"] == "1"
    assert (spec.cores, spec.mem_nodes) == ((4, 5), (1,))
    assert {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "VLLM_API_KEY"} <= set(spec.unset)
    assert not any(name.endswith("VISIBLE_DEVICES") for name in spec.env)


def test_no_secret_but_by_its_file() -> None:
    spec = build(make_plan())
    assert spec.secret_env == {"EXASLURM_ENGINE_KEY": "/key"}
    assert "EXASLURM_ENGINE_KEY" not in spec.env


def test_the_users_options_win() -> None:
    args = {"dtype": "bfloat16", "enforce_eager": False, "max-model-len": 2048,
            "trust-remote-code": True}  # fmt: skip
    extra = ("--kv-cache-memory-bytes=7", "--shutdown_timeout", "3")
    spec = build(make_plan(args=args, extra_args=extra, env={"OMP_NUM_THREADS": "9"}))
    assert value(spec, "--dtype") == "bfloat16"
    assert value(spec, "--max-model-len") == "2048"
    assert "--no-enforce-eager" in spec.argv
    assert "--enforce-eager" not in spec.argv
    assert "--kv-cache-memory-bytes" not in spec.argv
    assert "--shutdown-timeout" not in spec.argv
    assert spec.argv[-3:] == extra
    assert spec.argv[spec.argv.index("--trust-remote-code") + 1].startswith("--")
    assert spec.env["OMP_NUM_THREADS"] == "9"


@pytest.mark.parametrize(
    "engine",
    [{"args": {"port": 1}}, {"args": {"served_model_name": "x"}}, {"extra_args": ("--host=0",)},
     {"extra_args": ("--api-key", "k")}, {"args": {"tensor-parallel-size": 2}}],
)  # fmt: skip
def test_what_exaslurm_sets_itself_is_refused(engine: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="is set by exaslurm"):
        build(make_plan(**engine))


def test_lora_is_refused_clearly() -> None:
    with pytest.raises(ReplicaError, match="LoRA"):
        build(make_plan(lora="/adapters/a"))


def test_shared_cpus_mean_one_thread() -> None:
    spec = build(make_plan(), pinned=False)
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert spec.env["OMP_NUM_THREADS"] == "1"


def test_ranks_share_the_cores() -> None:
    spec = build(make_plan(tensor=2), cores=(0, 1, 2, 3))
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,3"
    assert value(spec, "--tensor-parallel-size") == "2"
    assert "--distributed-executor-backend" not in spec.argv
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in spec.env


@pytest.mark.parametrize(
    ("device", "variable"),
    [("cuda", "CUDA_VISIBLE_DEVICES"), ("rocm", "HIP_VISIBLE_DEVICES"),
     ("xpu", "ZE_AFFINITY_MASK")],
)  # fmt: skip
def test_exactly_one_variable_names_the_gpus(device: str, variable: str) -> None:
    spec = build(make_plan(device=device), gpus=("2", "3"), hca="mlx5_1:1")
    assert spec.env[variable] == "2,3"
    others = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
              "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"} - {variable}  # fmt: skip
    assert others <= set(spec.unset)
    assert not others & set(spec.env)
    assert "--enforce-eager" not in spec.argv
    if device in ("cuda", "rocm"):
        assert spec.env["NCCL_IB_HCA"] == "=mlx5_1:1"
        assert spec.env["NCCL_SOCKET_IFNAME"] == "=hsn0"
    assert spec.env["GLOO_SOCKET_IFNAME"] == "hsn0"
    assert spec.env["VLLM_HOST_IP"] == "10.0.0.1"


def test_replicas_share_no_cache(tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    fast.mkdir()
    (tmp_path / "local").symlink_to(fast)
    one = build(make_plan(), tmp_path)
    two = build(make_plan(), tmp_path, id="c000-r0001")
    names = [
        name for name in one.env if name.endswith(("_DIR", "_ROOT", "_PATH", "_CACHE", "BASE"))
    ]
    assert {"TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"} <= set(names)
    assert all(one.env[name] != two.env[name] for name in [*names, "TMPDIR"])
    assert one.env["TRITON_CACHE_DIR"].startswith(str(tmp_path / "local" / "cache"))
    assert one.env["TMPDIR"] == str(tmp_path / "t" / "c000-r0000")


def test_simulated() -> None:
    plan = make_plan(kind="simulated", args={"load-s": 2}, extra_args=("--answer-tokens", "5"))
    spec = build(plan)
    assert spec.argv[:3] == ("/env/bin/python", "-m", "exaslurm.engines.simulated")
    assert value(spec, "--load-s") == "2"
    assert value(spec, "--shutdown-timeout") == "30.0"
    assert spec.argv[-2:] == ("--answer-tokens", "5")
    assert spec.secret_env == {"EXASLURM_ENGINE_KEY": "/key"}
