"""The routers that are measured side by side: how each is found, set up and started."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import free_port

MODEL = "bench"
KEY = secrets.token_urlsafe(32)
# Of the peers that PyPI has, these versions are compared.
PINNED = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
PEERS = ("nginx", "haproxy", *PINNED)
OURS = ("core", "full")
_INSTALL_S = 900
_BOUNDLESS = 10**9


@dataclass(frozen=True, slots=True)
class Start:
    """How a router is started. ``header`` is what its clients have to send; ``folder``: where."""

    command: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict)
    header: str = ""
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Contestant:
    """``start``: port to listen on, ports of the engines, an empty folder -> how it is started.
    ``asks``: it asks engines by itself how they are."""

    name: str
    version: str
    asks: bool
    start: Callable[[int, Sequence[int], Path], Start]


def install(folder: Path) -> None:
    """Put the pinned peers into environments of their own. CalledProcessError if pip fails."""
    for name, version in PINNED.items():
        home = folder / name
        if (home / "bin" / name).exists():
            continue
        print(f"installing {name} {version} into {home}", file=sys.stderr)
        # The Python that wheels exist for, not that of an active environment.
        base = getattr(sys, "_base_executable", sys.executable)
        pip: list[str | Path] = [home / "bin" / "pip", "install", "-q", f"{name}=={version}"]
        for command in ([base, "-m", "venv", home], pip):
            subprocess.run(command, check=True, timeout=_INSTALL_S, stdout=sys.stderr)


def find(name: str, given: Mapping[str, Path], folder: Path) -> Path | None:
    """The program of a peer: as given, as installed by us, or on the PATH."""
    if name in given:
        return given[name]
    installed = folder / name / "bin" / name
    if installed.exists():
        return installed
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return None if found is None else Path(found)


def peer(name: str, program: Path) -> Contestant:
    start = {"nginx": _nginx, "haproxy": _haproxy}.get(name, _rust_router)
    version = _version(name, program)
    asks = name in PINNED
    return Contestant(
        name, version, asks, lambda port, engines, folder: start(program, port, engines, folder)
    )


def ours(profile: str, python: str, package: Path, *, workers: int = 1) -> Contestant:
    """``core``: a list of engines, their health and figures, one key. ``full``: an audit log on
    disk, a key with limits, a bounded queue and a canary, too. ``package``: the folder that
    exaslurm lies in."""

    def start(port: int, engines: Sequence[int], folder: Path) -> Start:
        command = [python, "-m", "exaslurm.gateway", "--port", str(port)]
        command += ["--workers", str(workers)]
        env = {"PYTHONPATH": os.fspath(package)}
        if profile == "core":
            listed = folder / "engines.txt"
            listed.write_text("".join(f"{url}\n" for url in _urls(engines)))
            env["EXASLURM_ROUTER_KEY"] = KEY
        else:
            listed = _versions(engines, folder)
            command += ["--canary", os.fspath(_shares(folder))]
            command += ["--keys-file", os.fspath(_limited_key(folder))]
            command += ["--audit", os.fspath(folder / "audit")]
            command += ["--limit", "max_in_flight_per_replica=10000", "--limit", "max_waiting=1000"]
        command += ["--engines-file", os.fspath(listed)]
        # Python looks into the folder it is started in before any other.
        return Start(command, env, f"Authorization: Bearer {KEY}", folder)

    name = profile if workers == 1 else f"{profile}, {workers} workers"
    return Contestant(name, "", True, start)


def _urls(engines: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in engines]


def _versions(engines: Sequence[int], folder: Path) -> Path:
    """Every eighth engine has a new version of the model."""
    path = folder / "engines.yaml"
    lines = ["schema: exaslurm/engines/v1", "engines:"]
    for number, url in enumerate(_urls(engines)):
        version = "new" if number % 8 == 0 else "old"
        lines.append(f"  - {{url: '{url}', version: {version}}}")
    path.write_text("\n".join(lines) + "\n")
    return path


def _shares(folder: Path) -> Path:
    path = folder / "canary.json"
    weights = {MODEL: {"new": 0.125, "old": 0.875}}
    path.write_text(json.dumps({"schema": "exaslurm/canary/1", "weights": weights, "by": "random"}))
    return path


def _limited_key(folder: Path) -> Path:
    path = folder / "clients.json"
    info = {
        "name": "bench",
        "created_s": time.time(),
        "models": [MODEL],
        "requests_per_min": _BOUNDLESS,
        "tokens_per_min": _BOUNDLESS,
        "concurrency": _BOUNDLESS,
    }
    stored = {"sha256": hashlib.sha256(KEY.encode()).hexdigest(), "info": info}
    path.touch(mode=0o600)
    path.write_text(json.dumps({"schema": "exaslurm/clients/1", "keys": [stored]}))
    return path


def _nginx(program: Path, port: int, engines: Sequence[int], folder: Path) -> Start:
    servers = "\n".join(f"    server 127.0.0.1:{engine} max_fails=0;" for engine in engines)
    scratch = "\n".join(
        f"  {kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"""\
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr error;
worker_rlimit_nofile 20000;
events {{ worker_connections 16000; }}
http {{
  access_log off;
{scratch}
  upstream engines {{
{servers}
    keepalive 2048;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    keepalive_requests 1000000000;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
    path = folder / "nginx.conf"
    path.write_text(text)
    return Start([program, "-e", "stderr", "-p", folder, "-c", path])


def _haproxy(program: Path, port: int, engines: Sequence[int], folder: Path) -> Start:
    servers = "\n".join(f"  server e{engine} 127.0.0.1:{engine}" for engine in engines)
    # Without no-delay it holds events back; with abortonclose it tells engines that clients left.
    text = f"""\
global
  maxconn 7000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
  option abortonclose
  http-reuse always
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  default_backend engines
backend engines
  balance leastconn
{servers}
"""
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return Start([program, "-db", "-f", path])


def _rust_router(program: Path, port: int, engines: Sequence[int], folder: Path) -> Start:  # noqa: ARG001
    command: list[str | Path] = [program]
    command += [] if program.name == "vllm-router" else ["launch"]
    command += ["--log-level", "warning" if program.name == "vllm-router" else "warn"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command += ["--worker-startup-check-interval", "1", "--worker-urls", *_urls(engines)]
    return Start(command)


def _version(name: str, program: Path) -> str:
    """What the program says of itself; empty if nothing."""
    if name in PINNED:
        ask = f"import importlib.metadata as m; print(m.version({name!r}))"
        command: list[str | Path] = [program.parent / "python", "-c", ask]
    else:
        command = [program, "-v"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        return ""
    words = (done.stdout or done.stderr).split()
    numbers = [word.rpartition("/")[2] for word in words if word.rpartition("/")[2][:1].isdigit()]
    return numbers[0] if numbers else ""
