"""The reference page says what the router has."""

from __future__ import annotations

import re
from pathlib import Path

from exaslurm.engines.simulated.options import parse
from exaslurm.engines.simulated.timing import TimingModel
from exaslurm.router.account import Accounts
from exaslurm.router.app import PROXIED
from exaslurm.router.table import Table

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_every_metric_and_path_is_documented() -> None:
    page = (REFERENCE / "router.md").read_text()
    rendered = Accounts(Table()).render().decode()
    names = set(re.findall(r"^# TYPE (exaslurm_\S+) ", rendered, re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) == 8
    assert names == set(re.findall(r"^\| `(exaslurm_router_\w+)`", page, re.MULTILINE))
    assert [path for path in PROXIED if f"{path}`" not in page] == []


def test_the_timing_model_is_documented_as_it_is() -> None:
    page = (REFERENCE / "simulated-engine.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) ", page, re.MULTILINE))
    model = TimingModel()
    assert float(rows["decode-tokens-per-s"]) == model.decode_tokens_per_s
    assert float(rows["prefill-tokens-per-s"]) == model.prefill_tokens_per_s
    assert float(rows["batch-slowdown"]) == model.batch_slowdown
    assert int(rows["max-num-seqs"]) == model.max_num_seqs
    arguments = [word for name, value in rows.items() for word in (f"--{name}", value)]
    options, ignored = parse(arguments)
    assert ignored == []
    assert options == parse([])[0]
