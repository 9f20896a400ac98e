"""Routers behind a router."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import openai

from tests.tools.fleet import INNER, engines, wait_for
from tests.tools.gateway import Gateway

KEY, INNER_ROUTER_KEY = "the-outer-key", "the-inner-key"


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_gateway_before_the_routers_of_cells(
    gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    engine_key = secret(tmp_path / "engine.key", INNER)
    router_key = secret(tmp_path / "router.key", INNER_ROUTER_KEY)
    with engines((), (), (), ()) as fleet:
        cells = []
        for number in range(2):
            listed = tmp_path / f"cell{number}.yaml"
            urls = ", ".join(f"'{engine.url}'" for engine in fleet[2 * number : 2 * number + 2])
            listed.write_text(f"key_file: {engine_key}\nengines: [{urls}]\n")
            cells.append(gateway("--engines-file", listed, EXASLURM_ROUTER_KEY=INNER_ROUTER_KEY))
        listed = tmp_path / "cells.yaml"
        urls = ", ".join(f"'{cell.url}'" for cell in cells)
        listed.write_text(f"key_file: {router_key}\nengines: [{urls}]\n")
        outer = gateway("--engines-file", listed, EXASLURM_ROUTER_KEY=KEY)
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=outer.url, headers=headers, trust_env=False) as http:
            wait_for(lambda: http.get("/status").json()["source"]["states"].get("ready") == 2)
            wait_for(lambda: "chat" in http.get("/v1/models").text)
        with openai.OpenAI(base_url=outer.url + "/v1", api_key=KEY, max_retries=0) as client:
            for number in range(12):
                stream = client.chat.completions.create(
                    model="chat",
                    messages=[{"role": "user", "content": f"{number} " * 300}],
                    max_tokens=3,
                    stream=True,
                )
                assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            # A cell's router goes, with requests under way: nobody notices.
            cells[0].process.kill()
            for number in range(20):
                answer = client.completions.create(
                    model="chat", prompt=f"{number} " * 300, max_tokens=2
                )
                assert answer.choices[0].text
