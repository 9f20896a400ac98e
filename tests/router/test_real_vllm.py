"""The corpus says what vLLM really answers, and what it accepts passes the router's checks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.models.test_serving import ENV, ROOT, served
from tests.router.test_check import CORPUS, MAX_MODEL_LEN
from tests.tools.ask_vllm import Engine, cases, read

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

# As lenient as a server can be made: what this one refuses, no other accepts.
LENIENT = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--trust-request-chat-template", "--trust-request-mm-kwargs", "--max-logprobs", "-1"),
)


@pytest.mark.parametrize(
    ("kind", "arguments"), [("generate", LENIENT), ("pooling", ("--runner", "pooling"))]
)
def test_the_corpus_is_true(kind: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    script = ROOT / "tests" / "tools" / "tiny_model.py"
    subprocess.run([ENV / "bin" / "python", script, model], check=True, timeout=120)
    names = ("--served-model-name", "tiny", "--max-model-len", str(MAX_MODEL_LEN))
    with served(str(model), tmp_path / "log", *names, *arguments) as address:
        engine = Engine(address)
        asked = 0
        otherwise = []
        for file in sorted(CORPUS.glob(f"{kind}-*.jsonl")):
            for line in read(file):
                for case in cases(line):
                    status, text = engine.ask(case)
                    asked += 1
                    if status != case.status:
                        otherwise.append((case.path, case.name, case.raw[:200], status, text[:200]))
    assert otherwise == []
    assert asked > 1000
