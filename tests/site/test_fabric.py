"""The site's ``fabric`` section, and what the plan makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.fabric import FabricPlan
from exaslurm.errors import SiteError
from exaslurm.site.load import load_site

SITE = """
schema: exaslurm/site/v1
name: x
extends: local
fabric:
  hcas: [cxi*, "mlx5_[0-3]"]
  env: {FI_CXI_DISABLE_HOST_REGISTER: 1, FI_MR_CACHE_MONITOR: userfaultfd}
  env_multi_node: {NCCL_NET: AWS Libfabric}
"""


def test_a_site_with_a_fabric(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SITE)
    fabric = FabricPlan(**load_site(str(path), {}).fabric.model_dump())
    assert fabric == FabricPlan(
        hcas=("cxi*", "mlx5_[0-3]"),
        env={"FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_MR_CACHE_MONITOR": "userfaultfd"},
        env_multi_node={"NCCL_NET": "AWS Libfabric"},
        xmit_wait_bytes=8,
    )
    assert FabricPlan(**load_site("local", {}).fabric.model_dump()) == FabricPlan()


@pytest.mark.parametrize(
    ("line", "message"),
    [("hcas: [a/b]", r"x\.yaml:5: fabric\.hcas"), ("env: {a-b: 1}", r"fabric\.env"),
     ("xmit_wait_bytes: 0", r"fabric\.xmit_wait_bytes"), ("hca: [x]", "hcas")],
)  # fmt: skip
def test_problems_name_the_key(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"schema: exaslurm/site/v1\nname: x\nextends: local\nfabric:\n  {line}\n")
    with pytest.raises(SiteError, match=message):
        load_site(str(path), {})
