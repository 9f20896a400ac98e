"""How many requests an engine has finished, by its metrics; prints a number.

Argument: {"url", "key_file"}, the engine's address and the file of the deployment's internal key.
"""

import json
import sys
import urllib.request
from pathlib import Path

given = json.loads(sys.argv[1])
key = Path(given["key_file"]).read_text().strip()
request = urllib.request.Request(
    given["url"] + "/metrics", headers={"Authorization": f"Bearer {key}"}
)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with direct.open(request, timeout=10) as answer:
    lines = answer.read().decode().splitlines()
counts = [line.split()[-1] for line in lines if line.startswith("vllm:request_success_total{")]
print(sum(map(float, counts)))
