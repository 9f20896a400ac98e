"""Asks a running vLLM what it says to the request corpus, and writes it down.

``python tests/tools/ask_vllm.py URL tests/router/corpus/generate-*.jsonl``

A line of the corpus is either one request (``path``, ``body`` or ``raw``) with its ``status``, or a
``base`` body with one ``field`` set to each of some values: ``answers`` are pairs of value, status.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

JSON = "application/json"


@dataclass(frozen=True)
class Case:
    """A request, and the status that vLLM answered it with (0: not asked yet)."""

    path: str
    raw: bytes
    content_type: str
    status: int
    name: str


def cases(line: dict[str, Any]) -> Iterator[Case]:
    """The requests that a line of the corpus stands for."""
    path, kind = line["path"], line.get("content_type", JSON)
    if "raw" in line:
        yield Case(path, line["raw"].encode("utf-8", "surrogateescape"), kind, line["status"], "")
        return
    if "field" not in line:
        yield Case(path, json.dumps(line["body"]).encode(), kind, line["status"], "")
        return
    for value, status in line["answers"]:
        body = {**line["base"], line["field"]: value}
        yield Case(path, json.dumps(body).encode(), kind, status, f"{line['field']}={value!r:.40}")


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


class Engine:
    """A running vLLM, or a router in front of one. ``key``: what it asks for, if it does."""

    def __init__(self, url: str, timeout_s: float = 60.0, *, key: str = "") -> None:
        where = urlsplit(url)
        self._address = (where.hostname or "", where.port)
        self._timeout_s = timeout_s
        self._fields = {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, case: Case) -> tuple[int, str]:
        """Status, and the start of the body."""
        connection = HTTPConnection(*self._address, timeout=self._timeout_s)
        headers = dict(self._fields)
        if case.content_type:
            headers["Content-Type"] = case.content_type
        try:
            connection.request("POST", case.path, case.raw, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")[:2000]
        finally:
            connection.close()


def record(engine: Engine, line: dict[str, Any]) -> dict[str, Any]:
    """The line with vLLM's answers of today."""
    found = [engine.ask(case) for case in cases(line)]
    if "field" in line:
        values = [value for value, _ in line["answers"]]
        answers = [[value, status] for value, (status, _) in zip(values, found, strict=True)]
        return {**line, "answers": answers}
    ((status, text),) = found
    line = {**line, "status": status}
    line.pop("says", None)
    if status != 200:
        line["says"] = _message(text)
    return line


def _message(text: str) -> str:
    try:
        answer = json.loads(text)
        return str(answer.get("error", {}).get("message") or answer)[:160]
    except (ValueError, AttributeError):
        return text[:160]


def main(url: str, *files: str) -> None:
    engine = Engine(url)
    for name in files:
        file = Path(name)
        lines = [record(engine, line) for line in read(file)]
        text = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines)
        file.write_text(text, "utf-8")
        print(name, len(lines), "lines", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
