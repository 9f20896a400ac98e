"""What another user of the machine can do to engines, keys and records: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acceptance.lab import ROOT
from acceptance.router.kit import RouterProcess
from acceptance.runner import Line
from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from tests.tools.fleet import Engine, wait_for

TITLE = "another user: no path of an engine but /health, no key file; an edited audit log is seen"

# Where nothing else is known: what vLLM 0.32 serves.
_ROUTES = """
/v1/chat/completions POST|/v1/completions POST|/v1/models GET|/v1/embeddings POST|/tokenize POST
/detokenize POST|/metrics GET|/version GET|/ping GET|/load GET|/server_info GET|/sleep POST
/wake_up POST|/is_sleeping GET|/pause POST|/resume POST|/collective_rpc POST|/invocations POST
/reset_prefix_cache POST|/v1/load_lora_adapter POST|/docs GET|/openapi.json GET|/health GET
"""
# Runs as the other user: asks every path without a key and with a wrong one, and tries to read.
_STRANGER = """
import json, sys, urllib.error, urllib.request
task = json.load(sys.stdin)
found = {"open": [], "read": [], "asked": 0}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for method, path in task["routes"]:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}):
        data = b"{}" if method == "POST" else None
        request = urllib.request.Request(task["url"] + path, data, headers, method=method)
        found["asked"] += 1
        try:
            status = opener.open(request, timeout=10).status
        except urllib.error.HTTPError as error:
            status = error.code
        if status != 401:
            found["open"].append([method, path, status])
for name in task["files"]:
    try:
        open(name, "rb").read(1)
        found["read"].append(name)
    except OSError:
        pass
print(json.dumps(found))
"""


def run(line: Line) -> None:
    line.need("run as root, to be another user", os.geteuid() == 0)
    folder = Path(line_folder(line))
    run_dir = RunDir(folder / "state" / "hello")
    run_dir.make()
    add_key(run_dir, "somebody")
    engine = Engine()
    line.cleanups.append(engine.close)
    audit = folder / "audit"
    router = RouterProcess(line, folder, [engine.url], "--audit", str(audit), guarded=True)
    wait_for(lambda: router.http.get("/ready").status_code == 200)
    body = {"model": "chat", "prompt": "x", "max_tokens": 2}
    statuses = {router.http.post("/v1/completions", json=body).status_code for _ in range(20)}
    line.need("the router answers to who has a key", statuses == {200}, statuses)

    routes = _routes()
    secrets = [
        run_dir.client_keys,
        *folder.glob("*.key"),
        audit,
        *audit.glob("*"),
        *audit.glob(".*"),
    ]
    for what, url in (("engine", engine.url), ("router", router.url)):
        task = {"url": url, "routes": routes, "files": [str(path) for path in secrets]}
        found = _as_stranger(task)
        line.note(f"{what}: {found['asked']} questions about {len(routes)} routes")
        # The router has no such page: that tells nobody anything. An engine does not even say that.
        missing = 404 if what == "router" else 401
        allowed = {"/health"} if what == "engine" else _OPEN_AT_ROUTER
        wrong = [
            f"{method} {path}: {status}"
            for method, path, status in found["open"]
            if path not in allowed and status != missing
        ]
        line.check(
            f"the {what} answers nothing but {', '.join(sorted(allowed))}", not wrong, wrong or ""
        )
        line.check("no key or record can be read", not found["read"], found["read"] or "")
    line.check("the engine was not reached", engine.metric("vllm:num_requests_running") == 0)

    router.close()
    line.check("the audit log is whole", _verify(audit) == 0)
    _edit(audit)
    line.check("an edited audit log is seen", _verify(audit) != 0)


_OPEN_AT_ROUTER = {"/health", "/ready", "/ping", "/version"}


def line_folder(line: Line) -> str:
    folder = tempfile.TemporaryDirectory(prefix="exaslurm-accept-")
    line.cleanups.append(folder.cleanup)
    # Others may look into the folder: it is the files themselves that must be closed.
    os.chmod(folder.name, 0o755)
    return folder.name


def _routes() -> list[tuple[str, str]]:
    data = os.environ.get("EXASLURM_DATA")
    if data is None:
        listed = [row.rsplit(" ", 1) for row in _ROUTES.strip().replace("\n", "|").split("|")]
        return [(method, path) for path, method in listed]
    recorded = (Path(data) / "vllm-0.32" / "routes.txt").read_text().splitlines()
    return [
        (method.strip(), path.replace("{response_id}", "resp_1"))
        for path, _, methods in (row.partition(", Methods: ") for row in recorded if row)
        for method in methods.split(",")
        if method.strip() != "HEAD"
    ]


def _as_stranger(task: Mapping[str, object]) -> dict[str, Any]:
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            _STRANGER,
        ],
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
        cwd="/",
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _verify(audit: Path) -> int:
    return subprocess.run(
        [sys.executable, "-m", "exaslurm", "logs", str(audit), "--verify"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
    ).returncode


def _edit(audit: Path) -> None:
    path = next(path for path in sorted(audit.glob("*.jsonl")) if path.stat().st_size)
    path.write_bytes(path.read_bytes().replace(b'"status":200', b'"status":500', 1))
