"""The jobs of a deployment's cells as they are written down, and constant load on it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from acceptance.lab import HOME, Lab
from acceptance.runner import Line, LineFailed

# Node-local: the shared file system may be taken away.
OVER = "/tmp/exaslurm-load-is-over"


def submissions(lab: Lab, deployment: str) -> dict[str, dict[str, Any]]:
    """Submission records by turn."""
    folder = f"{HOME}/exaslurm/{deployment}/gen/1/submissions"
    text = lab.sh(f"cat {folder}/*.json | tr -d '\\n'").stdout
    decoder, found, at = json.JSONDecoder(), {}, 0
    while at < len(text):
        item, at = decoder.raw_decode(text, at)
        found[item["cell"]] = item
    return found


def history(lab: Lab, deployment: str) -> list[dict[str, Any]]:
    """Lines of the deployment's history."""
    text = lab.on("login", "cat", f"{HOME}/exaslurm/{deployment}/history.jsonl").stdout
    return [json.loads(line) for line in text.splitlines()]


def notes(lab: Lab, deployment: str) -> list[str]:
    """What ``status`` has to say beside its figures."""
    status = lab.status(deployment)
    return [*status["notes"], *(note for cell in status["cells"] for note in cell["notes"])]


@contextlib.contextmanager
def load(
    line: Line,
    lab: Lab,
    deployment: str,
    model: str,
    *,
    concurrency: int = 4,
    max_tokens: int = 16,
    pause_s: float = 0.1,
) -> Iterator[concurrent.futures.Future[Any]]:
    """Constant load while this lasts; what the client found is the future's result then."""
    lab.on("login", "rm", "-f", OVER, user="root")
    given = {
        **lab.target(deployment, model),
        "until": OVER,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "pause_s": pause_s,
    }
    line.cleanups.append(lambda: lab.on("login", "touch", OVER, user="root"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.client, "steady", given, timeout_s=3600)
        try:
            yield running
        finally:
            lab.on("login", "touch", OVER, user="root")
            with contextlib.suppress(LineFailed):
                running.result(timeout=180)


def report(line: Line, found: dict[str, Any], *, asked: int) -> None:
    """The figures of a load that nobody should have noticed anything under."""
    line.note(
        f"{found['answers']} answers ({found['streams']} streams) in {found['lasted_s']:.0f} s, "
        f"slowest {found['slowest_s']:.1f} s; longest time without an answer {found['gap_s']:.1f} s"
    )
    line.check("requests not begun that failed: 0", not found["not_begun"],
               _first(found["not_begun"]))  # fmt: skip
    line.check("begun streams that broke: 0", not found["begun"], _first(found["begun"]))
    line.note("replicas that take requests, by the router, each second: " + ", ".join(
        f"{count} from {at_s:.0f} s" for at_s, count in found["seen"]))  # fmt: skip
    line.at_least("never fewer replicas than asked", found["fewest"], asked)
    line.check("the router could be looked at each second", found["blind"] == 0,
               f"{found['looks']} looks, {found['blind']} without an answer")  # fmt: skip


def _first(notes: list[str]) -> str:
    return "\n".join([str(len(notes)), *notes[:5]])
