"""Two deployments side by side, used by the openai package."""

from __future__ import annotations

import math
from collections import Counter

from acceptance.lab import ROOT, Lab, lab
from acceptance.runner import Line

TITLE = "openai client: chat plain and streamed, and real embeddings from a second deployment"

TEXTS = [
    "A cat sits on the mat.",
    "Slurm starts jobs on compute nodes.",
    "Ein kurzer deutscher Satz.",
    "The quick brown fox jumps over the lazy dog while the operator reads the log.",
]


def run(line: Line) -> None:
    here = lab(line)
    chat_spec = (ROOT / "examples/lab.yaml").read_text()
    embed_spec = (ROOT / "examples/lab-embeddings.yaml").read_text()
    line.ran("the chat deployment is ready", here.submit(line, chat_spec, "hello", wait="10m"))
    done = here.submit(line, embed_spec, "embeddings", wait="10m")
    line.ran("the embeddings deployment is ready beside it", done)
    found = here.client(
        "openai_client",
        {
            "chat": here.target("hello", "smollm2-135m"),
            "embed": here.target("embeddings", "all-minilm-l6-v2"),
            "texts": TEXTS,
        },
    )
    line.check("chat, plain", "Paris" in found["plain"], found["plain"][:60])
    line.check("chat, streamed: the same text", found["streamed"] == found["plain"])
    line.at_least("pieces of the stream", found["pieces"], 3)
    line.check("models", "smollm2-135m" in found["models"], " ".join(found["models"]))
    reference = here.client("reference_embeddings", TEXTS)
    cosines = [cosine(a, b) for a, b in zip(found["embeddings"], reference, strict=True)]
    line.at_least("cosine to the reference, least of 4", min(cosines), 0.999)
    statuses = [here.status("hello"), here.status("embeddings")]
    no_collision(line, statuses)
    apart_on_nodes(line, here, statuses)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def no_collision(line: Line, statuses: list[dict]) -> None:  # type: ignore[type-arg]
    cells = [cell for status in statuses for cell in status["cells"]]
    replicas = [replica for cell in cells for replica in cell["replicas"]]
    nodes = Counter(node for node, _ in {(r["node"], r["id"] + r["model"]) for r in replicas})
    line.check("they share nodes", max(nodes.values()) > 1, str(dict(nodes)))
    urls = [replica["url"] for replica in replicas]
    line.check("engines' addresses are distinct", len(set(urls)) == len(urls), len(urls))
    rays = [cell["ray"] for cell in cells]
    complete = all(ray["state"] == "complete" for ray in rays)
    line.check("both Ray clusters are complete", complete, [ray["state"] for ray in rays])
    addresses = {ray["address"] for ray in rays}
    line.check("and distinct", len(addresses) == 2, " ".join(sorted(map(str, addresses))))
    wanted = [cell["nodes_planned"] for cell in cells]
    alive = [ray["nodes_alive"] for ray in rays]
    line.check("and hold their own nodes only", alive == wanted, f"{alive} of {wanted}")
    phases = [status["phase"] for status in statuses]
    line.check("both are still ready", phases == ["ready", "ready"], str(phases))


def apart_on_nodes(line: Line, here: Lab, statuses: list[dict]) -> None:  # type: ignore[type-arg]
    """Each has a directory and a block of ports of its own on the nodes that both use."""
    both = [{n["node"] for cell in s["cells"] for n in cell["nodes"]} for s in statuses]
    shared = sorted(both[0] & both[1])
    line.check("nodes of both", len(shared) >= 2, " ".join(shared))
    for node in shared:
        folders = here.sh("ls -d /tmp/xs-*", host=node).stdout.split()
        line.check(f"{node}: a directory for each", len(folders) == 2, " ".join(folders))
        blocks = {here.sh(f"cat {folder}/port_base", host=node).stdout for folder in folders}
        line.check(f"{node}: a block of ports for each", len(blocks) == 2, sorted(blocks))
        sockets = here.sh(
            f"ls -d {' '.join(f'{folder}/ray/session_latest/sockets' for folder in folders)}",
            host=node,
        ).stdout.split()
        line.check(f"{node}: a Ray session for each", len(sockets) == 2, len(sockets))
