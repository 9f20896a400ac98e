"""Stands in for the ``vllm`` command where a test needs an engine that fails on demand.

``FAKE_ENGINE``: a comma-separated list of ``crash`` (an error after its start), ``echo`` (the same,
followed by what vLLM's API server says then), ``family`` (leaves a process in a session of its
own), ``stubborn`` (ignores SIGTERM), ``mute`` (never listens).
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading

HELP = """usage: vllm serve [model_tag] [options]

options:
  --host HOST           Host name. (default: None)
  --port PORT           Port number. (default: 8000)
  --served-model-name SERVED_MODEL_NAME [SERVED_MODEL_NAME ...]
                        The names.
  --middleware MIDDLEWARE
                        Additional middleware.
  --dtype {auto,float32}
  --enforce-eager, --no-enforce-eager
  --kv-cache-memory-bytes KV_CACHE_MEMORY_BYTES
  --distributed-executor-backend {mp,uni}
  --shutdown-timeout SHUTDOWN_TIMEOUT
  --disable-access-log-for-endpoints DISABLE_ACCESS_LOG_FOR_ENDPOINTS
  --max-model-len MAX_MODEL_LEN
  --nnodes NNODES, -n NNODES
  --node-rank NODE_RANK, -r NODE_RANK
  --master-addr MASTER_ADDR
  --master-port MASTER_PORT
  --headless
"""

METRICS = """# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 0.0
"""


BEHAVIOUR = set(os.environ.get("FAKE_ENGINE", "").split(","))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        key = f"Bearer {os.environ['EXASLURM_ENGINE_KEY']}"
        if self.path != "/health" and self.headers.get("Authorization") != key:
            self.answer(401, "")
        elif self.path == "/health":
            self.answer(200, "")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": "m", "max_model_len": 2048}]}))
        elif self.path == "/metrics":
            busy = {"stall", "spin", "slow"} & BEHAVIOUR
            self.answer(200, METRICS.replace(" 2.0", " 0.0").replace(" 1.0", " 0.0", 1) if busy
                        else METRICS)  # fmt: skip
        elif self.path == "/exaslurm/held":
            self.answer(200, json.dumps({"held": int(bool({"stall", "spin", "slow"} & BEHAVIOUR))}))
        else:
            self.answer(404, "")

    def do_POST(self) -> None:
        if {"stall", "spin"} & BEHAVIOUR:
            threading.Event().wait()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, json.dumps({"choices": []}))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


def spin() -> None:
    while True:
        pass


def hog() -> None:
    taken = []
    while True:
        taken.append(bytearray(4 << 20))


def main(argv: list[str]) -> None:
    if "--help=all" in argv:
        print(HELP)
        return
    behaviour = BEHAVIOUR
    print("INFO 11-29 20:00:00 [api_server.py:1] vLLM API server version 0.32.0", flush=True)
    if "stubborn" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "family" in behaviour:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.Popen(["sleep", "1000"])
    if "crash" in behaviour:
        print(
            "(EngineCore pid=7) ERROR 11-29 20:00:01 [core.py:99] ValueError: the weights are bad"
        )
        if "echo" in behaviour:
            print("RuntimeError: Engine core initialization failed. See root cause above.")
        sys.exit(1)
    if "mute" in behaviour:
        signal.pause()
    if "spin" in behaviour:
        threading.Thread(target=spin, daemon=True).start()
    if "hog" in behaviour:
        threading.Timer(1.0, hog).start()
    host, port = argv[argv.index("--host") + 1], int(argv[argv.index("--port") + 1])
    http.server.ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
