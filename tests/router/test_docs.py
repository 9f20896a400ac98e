"""The reference page says what the router has."""

from __future__ import annotations

import re
from pathlib import Path

from exaslurm.engines.simulated.options import parse
from exaslurm.engines.simulated.timing import TimingModel
from exaslurm.registry.replica import StaticSource
from exaslurm.router.admission import CAUSES
from exaslurm.router.audit import Audit
from exaslurm.router.audit_read import read
from exaslurm.router.call import Call
from exaslurm.router.config import RouterConfig
from exaslurm.router.router import Router
from exaslurm.router.routes import PROXIED

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "exaslurm" / "router"


def test_every_path_is_documented() -> None:
    page = (REFERENCE / "router.md").read_text()
    assert [path for path in PROXIED if f"{path}`" not in page] == []


def test_every_metric_is_documented(tmp_path: Path) -> None:
    page = (REFERENCE / "metrics.md").read_text()
    audit = Audit(tmp_path, secret=None)
    router = Router(RouterConfig(deployment="x"), StaticSource(), None, audit)
    families = router.metrics.families()
    assert len(families) >= 19
    rows = re.findall(r"^\| `(exaslurm_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    documented = {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}
    assert documented == {family.name: (family.kind, list(family.labels)) for family in families}


def test_every_cause_is_documented() -> None:
    table = (REFERENCE / "metrics.md").read_text().partition("## Causes")[2].partition("##")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    documented = {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}
    used = set(CAUSES)
    for path in PACKAGE.glob("*.py"):
        source = path.read_text()
        used |= set(re.findall(r"\bcause = \"(\w+)\"", source))
        used |= set(re.findall(r"\bcause=\"(\w+)\"", source))
    assert len(used) >= 15
    assert used <= documented


def test_every_field_of_the_audit_log_is_documented(tmp_path: Path) -> None:
    audit = Audit(tmp_path, secret=None)
    audit.start()
    audit.record(Call("/v1/completions", b"x", 0.0))
    audit.close()
    (record,) = (record for record in read(tmp_path) if record["kind"] == "request")
    table = (REFERENCE / "audit.md").read_text().partition("## Records")[2].partition("##")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    fields = [field for cell in cells for field in re.findall(r"`(\w+)`", cell)]
    assert fields == [*record, "mac"]


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
