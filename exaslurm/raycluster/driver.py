"""A driver of the cell's Ray in a process of its own: JSON lines in, JSON lines out.

Ray ends a driver whose GCS is gone, from inside its C++ code; this process takes that blow so that
the controller need not. It ends by itself when its parent closes stdin or dies.

Requests are ``{"id": n, "op": ..., ...}``, answers ``{"id": n, "ok": true, "result": ...}`` or
``{"id": n, "ok": false, "error": "..."}``. The first line it writes is the answer with id 0, about
the connection. Operations: ``nodes``; ``groups`` (make the placement groups that are missing or
wrong, remove those of other replicas); ``group_states``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

from exaslurm.raycluster.selectors import matches

NAMESPACE = "exaslurm"
_PR_SET_PDEATHSIG = 1
_CONNECT_PAUSE_S = 0.2


def main(argv: list[str]) -> int:
    """Connect, then answer until stdin ends."""
    parser = argparse.ArgumentParser(prog="exaslurm.raycluster.driver")
    parser.add_argument("--address", required=True, help="GCS address, HOST:PORT")
    parser.add_argument("--deadline-s", type=float, required=True)
    options = parser.parse_args(argv)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Ray and what it imports may print: only our own lines go to the parent.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    requests = _Requests(sys.stdin)
    try:
        _connect(options.address, options.deadline_s)
    except Exception as error:
        _write(answers, {"id": 0, "ok": False, "error": _one_line(error)})
        return 1
    _write(answers, {"id": 0, "ok": True, "result": None})
    for request in requests:
        answer: dict[str, Any] = {"id": request.get("id"), "ok": True}
        try:
            answer["result"] = _OPERATIONS[request["op"]](request)
        except Exception as error:
            answer |= {"ok": False, "error": _one_line(error)}
        _write(answers, answer)
    return 0


class _Requests:
    """Requests from stdin. A thread reads, so that the end of the parent is seen at once, also
    in the middle of a call that Ray does not return from."""

    def __init__(self, source: TextIO) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def __iter__(self) -> _Requests:
        return self

    def __next__(self) -> dict[str, Any]:
        with self._changed:
            while not self._lines:
                self._changed.wait()
            request: dict[str, Any] = json.loads(self._lines.pop(0))
            return request

    def _read(self, source: TextIO) -> None:
        for line in source:
            with self._changed:
                self._lines.append(line)
                self._changed.notify()
        os._exit(0)


def _connect(address: str, deadline_s: float) -> None:
    import ray

    deadline = time.monotonic() + deadline_s
    while True:
        error = _init(ray, address)
        if error is None:
            return
        if time.monotonic() > deadline:
            raise error
        time.sleep(_CONNECT_PAUSE_S)


def _init(ray: Any, address: str) -> Exception | None:
    """One try; the GCS answers before the head's own raylet has registered with it."""
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        ray.shutdown()
        return error
    return None


def _nodes(_request: dict[str, Any]) -> list[dict[str, Any]]:
    import ray

    return [
        {
            "node_id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "labels": node.get("Labels", {}),
            "resources": node.get("Resources", {}),
        }
        for node in ray.nodes()
    ]


def _groups(request: dict[str, Any]) -> dict[str, str]:
    """Make Ray's groups those of the request: ``{name: {"bundles": [...], "selectors": [...]}}``.
    A group is kept if it has the same bundles on the same node."""
    from ray.util import placement_group as make
    from ray.util import remove_placement_group

    wanted: dict[str, Any] = request["groups"]
    present = _table()
    for name, entry in present.items():
        if name not in wanted or not _fits(entry, wanted[name]):
            remove_placement_group(_handle(entry))
    for name, group in wanted.items():
        if name in present and _fits(present[name], group):
            continue
        make(
            group["bundles"],
            strategy="STRICT_PACK" if len(group["bundles"]) == 1 else "PACK",
            name=name,
            lifetime="detached",
            bundle_label_selector=group["selectors"],
        )
    return _group_states(request)


def _group_states(_request: dict[str, Any]) -> dict[str, str]:
    """Ray's word for each of our groups: PENDING, CREATED, RESCHEDULING, ..."""
    return {name: str(entry["state"]) for name, entry in _table().items()}


def _table() -> dict[str, dict[str, Any]]:
    from ray.util import placement_group_table

    return {
        entry["name"]: entry
        for entry in placement_group_table().values()
        if entry["name"] and entry["state"] != "REMOVED"
    }


def _fits(entry: dict[str, Any], group: dict[str, Any]) -> bool:
    import ray

    bundles = [
        dict(bundle) for _, bundle in sorted(entry["bundles"].items(), key=lambda b: int(b[0]))
    ]
    if bundles != [{k: float(v) for k, v in b.items()} for b in group["bundles"]]:
        return False
    labels = {node["NodeID"]: node.get("Labels", {}) for node in ray.nodes() if node["Alive"]}
    places: dict[Any, str] = entry.get("bundles_to_node_id", {})
    for index, selector in enumerate(group["selectors"]):
        found = labels.get(places.get(index, ""), {})
        if not all(matches(text, found.get(key)) for key, text in selector.items()):
            return False
    return True


def _handle(entry: dict[str, Any]) -> Any:
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID(bytes.fromhex(entry["placement_group_id"])))


_OPERATIONS = {"nodes": _nodes, "groups": _groups, "group_states": _group_states}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:500]


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
