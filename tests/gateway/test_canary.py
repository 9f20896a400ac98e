"""Versions of a model: who gets how much, and what is counted of each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.tools.fleet import INNER, Engine, engines, wait_for
from tests.tools.gateway import Gateway

KEY = "the-one-key"
BODY = {"model": "chat", "prompt": "x", "max_tokens": 2}


def shares(path: Path, by: str, **weights: float) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"by": by, "weights": {"chat": weights}}))
    fresh.replace(path)


def test_requests_are_divided_as_the_file_says(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    key = tmp_path / "engine.key"
    key.write_text(INNER)
    key.chmod(0o600)
    listed, canary = tmp_path / "engines.yaml", tmp_path / "canary.json"
    shares(canary, "random", old=0.0, new=1.0)
    with engines((), ()) as (old, new):
        listed.write_text(
            f"key_file: {key}\nengines:\n"
            f"  - {{url: '{old.url}', version: old}}\n  - {{url: '{new.url}', version: new}}\n"
        )
        router = gateway("--engines-file", listed, "--canary", canary, EXASLURM_ROUTER_KEY=KEY)
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=router.url, headers=headers, trust_env=False) as http:

            def served(count: int) -> list[Engine]:
                names = [
                    http.post("/v1/completions", json=BODY).headers["x-exaslurm-replica"]
                    for _ in range(count)
                ]
                return [old if old.url.endswith(name) else new for name in names]

            wait_for(lambda: http.get("/status").json()["source"]["states"].get("ready") == 2)
            wait_for(lambda: set(served(10)) == {new})
            shares(canary, "random", old=1.0, new=1.0)
            wait_for(lambda: set(served(20)) == {old, new})
            # A client's key stays with one version.
            shares(canary, "key", old=1.0, new=1.0)
            wait_for(lambda: len(set(served(20))) == 1)
            # A damaged file changes nothing.
            canary.write_text("{")
            assert len(set(served(20))) == 1
            shares(canary, "random", old=1.0, new=0.0)
            wait_for(lambda: set(served(10)) == {old})

            page = http.get("/metrics").text
            versions = re.findall(
                r'exaslurm_router_requests_total\{[^}]*version="(\w+)"[^}]*\}', page
            )
            assert set(versions) == {"old", "new"}


def test_a_file_that_is_not_there_is_told(gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    listed, canary = tmp_path / "engines.yaml", tmp_path / "no-such.json"
    with engines(()) as (engine,):
        listed.write_text(f"engines:\n  - {engine.url}\n")
        router = gateway("--engines-file", listed, "--canary", canary, EXASLURM_ROUTER_KEY=KEY)
        assert f"{canary} is not there" in router.said
