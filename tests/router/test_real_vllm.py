"""Real vLLM behind the router: what it accepts passes, and every byte is as it said it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.models.test_serving import ENV, ROOT, served
from tests.tools import ask_vllm, same_bytes
from tests.tools.corpus import MAX_MODEL_LEN, MODEL, SERVERS, compare
from tests.tools.fleet import INNER, wait_for
from tests.tools.gateway import Gateway
from tests.tools.same_bytes import Side
from tests.tools.tap import Tap

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

KEY = "the-one-key"
NAME = ("--served-model-name", MODEL)
GUARD = ("--middleware", "exaslurm.engines.middleware.KeyMiddleware")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    script = ROOT / "tests" / "tools" / "tiny_model.py"
    subprocess.run([ENV / "bin" / "python", script, directory], check=True, timeout=120)
    return directory


@pytest.fixture(autouse=True)
def _guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXASLURM_ENGINE_KEY", INNER)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextlib.contextmanager
def routed(folder: Path, url: str) -> Iterator[str]:
    """The address of a router in front of a guarded engine, which is ready."""
    folder.mkdir()
    for name, key in (("engine", INNER), ("client", KEY)):
        file = folder / f"{name}.key"
        file.touch(mode=0o600)
        file.write_text(key)
    listed = folder / "engines.yaml"
    listed.write_text(f"key_file: {folder / 'engine.key'}\nengines: ['{url}']\n")
    arguments = ("--engines-file", listed, "--port", 0, "--key-file", folder / "client.key")
    with contextlib.closing(Gateway(arguments, folder / "log")) as gateway:
        assert gateway.url, gateway.said
        with httpx.Client(base_url=gateway.url, trust_env=False) as http:
            wait_for(lambda: http.get("/ready").status_code == 200, timeout_s=30)
        yield gateway.url


@pytest.mark.parametrize("kind", SERVERS)
def test_the_corpus_is_true_and_passes_the_router(kind: str, model: Path, tmp_path: Path) -> None:
    arguments = (*NAME, "--max-model-len", str(MAX_MODEL_LEN), *SERVERS[kind], *GUARD)
    with (
        served(str(model), tmp_path / "log", *arguments) as url,
        routed(tmp_path / "router", url) as router,
    ):
        engine = ask_vllm.Engine(url, key=INNER)
        found = compare(kind, engine, ask_vllm.Engine(router, key=KEY))
    assert (found.untrue, found.stricter, found.unlike) == ([], [], [])
    assert found.asked > 1000
    assert found.accepted > 500


def test_every_byte_is_as_vllm_said_it(model: Path, tmp_path: Path) -> None:
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    arguments = (*NAME, "--max-model-len", "2048", "--stream-interval", "8", *tools, *GUARD)
    with (
        served(str(model), tmp_path / "log", *arguments) as url,
        contextlib.closing(Tap(url)) as tap,
        routed(tmp_path / "router", url) as router,
        routed(tmp_path / "tapped", tap.url) as tapped,
    ):
        requests = list(same_bytes.generating(MODEL))
        direct, near, through = Side(url, INNER), Side(router, KEY), Side(tapped, KEY)
        differ = {each.name: same_bytes.difference(direct, near, each) for each in requests}
        changed = {each.name: same_bytes.changed(tap, through, each) for each in requests}
        assert {name: text for name, text in differ.items() if text} == {}
        assert {name: text for name, text in changed.items() if text} == {}
        assert len(requests) > 30
        the_openai_package(router)


def the_openai_package(url: str) -> None:
    options: Any = {"model": MODEL, "messages": same_bytes.HI, "temperature": 1, "seed": 7}
    options |= {"max_tokens": 64, "extra_body": {"ignore_eos": True}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as api:
        whole = api.chat.completions.create(**options)
        events = list(api.chat.completions.create(**options, stream=True))
        text = "".join(event.choices[0].delta.content or "" for event in events)
        assert text == whole.choices[0].message.content
        assert len(text) > 64
        assert len(events) > 5
        long: Any = [{"role": "user", "content": "one two three " * 2000}]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 2048"):
            api.chat.completions.create(**{**options, "messages": long}, stream=True)
