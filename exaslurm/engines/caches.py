"""Directories of one replica's own: engines that share a compile cache break each other."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from exaslurm.util.files import make_private_dir


@dataclass(frozen=True, slots=True)
class ReplicaDirs:
    """``cache`` keeps what a restart can use again; ``tmp`` is emptied before each start. Sockets
    go to ``tmp``, so its path must be short."""

    cache: Path
    tmp: Path

    @classmethod
    def of(cls, node_dir: Path, replica: str) -> ReplicaDirs:
        """Under the node's runtime directory; the cache on node-local storage if there is some
        (init links it as ``local``)."""
        local = node_dir / "local"
        base = local if local.is_dir() else node_dir
        return cls(cache=base / "cache" / replica, tmp=node_dir / "t" / replica)

    def make(self) -> None:
        """Make both, with an empty ``tmp``; StateError if that is not possible."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        make_private_dir(self.cache)
        make_private_dir(self.tmp)

    def env(self) -> dict[str, str]:
        """Variables of the programs that keep caches or temporary files."""
        return {
            "TMPDIR": str(self.tmp),
            "VLLM_RPC_BASE_PATH": str(self.tmp),
            "VLLM_CACHE_ROOT": str(self.cache / "vllm"),
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(self.cache / "torch-extensions"),
            "CUDA_CACHE_PATH": str(self.cache / "cuda"),
            "FLASHINFER_WORKSPACE_BASE": str(self.cache / "flashinfer"),
            "HF_MODULES_CACHE": str(self.cache / "hf-modules"),
            "NUMBA_CACHE_DIR": str(self.cache / "numba"),
        }
