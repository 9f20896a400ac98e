"""Secrets stay where they belong."""

from __future__ import annotations

import json
from contextlib import ExitStack

from acceptance import disclosure
from acceptance.argv_watch import ArgvWatch
from acceptance.disclosure import Findings
from acceptance.lab import HOME, Lab, lab
from acceptance.runner import Line
from acceptance.tiny import tiny_model

TITLE = "no secret in argv, Slurm, logs, spool, loose files, or anything another user can read"

NAME = "discreet"
RUN_DIR = f"{HOME}/exaslurm/{NAME}"
KEY_FILE = f"{HOME}/{NAME}.key"
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
workers: {{nodes: 2}}
models:
  - name: tiny
    {model}
    shards: [{{name: base, replicas: 2}}]
"""
REAL = "source: {{path: {path}}}"
SIMULATED = "engine: {kind: simulated}"

# Good and bad requests, whose traces in logs and metrics are searched afterwards. The orders come
# by stdin: keys have no place in an argument list.
REQUESTS = """
import http.client, json, sys, urllib.parse
order = json.load(sys.stdin)
chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
bodies = [json.dumps(chat), json.dumps({**chat, "stream": True}), "{", json.dumps({"model": "?"})]
codes = []
for url in order["urls"]:
    at = urllib.parse.urlsplit(url)
    for key in order["keys"]:
        for path in ("/v1/chat/completions", "/metrics", "/v1/models", "/nowhere", "/v1/state"):
            for body in bodies if path.endswith("completions") else [None]:
                http_ = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
                head = {"Authorization": "Bearer " + key, "X-API-Key": key}
                http_.request("POST" if body else "GET", path, body, head)
                answer = http_.getresponse()
                answer.read()
                codes.append(answer.status)
print(json.dumps(codes))
"""
# Processes and files with a decoy: a search that does not find these finds nothing.
DECOY = r"""
read -r decoy
echo "$decoy" >/dev/shm/decoy && chmod 644 /dev/shm/decoy
mkdir -m 755 /tmp/decoys
printf %s "x$decoy" | base64 -w0 >/tmp/decoys/coded && chmod 600 /tmp/decoys/coded
setsid bash -c 'sleep 600; true' "$decoy" </dev/null >/dev/null 2>&1 &
echo $! >/tmp/decoys/pids
DECOY=$decoy setsid sleep 600 </dev/null >/dev/null 2>&1 &
echo $! >>/tmp/decoys/pids
"""
DECOY_HOST = "c2"


def run(line: Line) -> None:
    here = lab(line)
    prove(line, here, REAL.format(path=tiny_model(line, here)))


def prove(line: Line, here: Lab, model: str) -> None:
    """The whole life of a deployment, watched. ``model`` is REAL or SIMULATED."""
    spec = SPEC.format(name=NAME, model=model)
    with ExitStack() as stack:
        watch = stack.enter_context(ArgvWatch())
        # Many sites leave homes open to all: then only what exaslurm does protects.
        home_mode = here.sh("stat -c %a ~").stdout.strip()
        here.sh("chmod 755 ~")
        line.cleanups.append(lambda: here.sh(f"chmod {home_mode} ~; rm -f {KEY_FILE}"))
        line.ran("a deployment comes up", here.submit(line, spec, NAME))
        secrets = disclosure.deployment_secrets(here, RUN_DIR)
        since_s = disclosure.made_s(here, RUN_DIR)
        secrets["client key"] = client_key(line, here)
        make_traces(line, here, secrets)
        decoys = {"decoy": disclosure.new_decoy()}
        line.cleanups.append(lambda: remove_decoys(here))
        line.ran("a decoy", here.sh(DECOY, host=DECOY_HOST, text=decoys["decoy"] + "\n"))
        found = disclosure.search(here, secrets | decoys, since_s, watch)
        line.note(f"while it serves: {json.dumps(found.counts)}")
        check_decoys(line, found)
        check(line, found, "while it serves")
        loose = disclosure.loose_files(here, RUN_DIR)
        line.check("every file of the run directory is its owner's alone", not loose, show(loose))
        check_reach(line, here, since_s, watch)
        line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))
        found = disclosure.search(here, secrets, since_s, watch)
    check(line, found, "after it")


def client_key(line: Line, here: Lab) -> str:
    """A new key for a client, which its owner keeps in a file."""
    command = f"{here.env}/bin/exaslurm key"
    here.sh(f"{command} remove {NAME} somebody")  # of an earlier run
    made = here.sh(f"umask 077; {command} add {NAME} somebody >{KEY_FILE} && cat {KEY_FILE}")
    line.ran("a client key is made", made)
    return made.stdout.strip()


def make_traces(line: Line, here: Lab, secrets: dict[str, str]) -> None:
    """Use it well and badly, in all the ways that leave something in logs."""
    status = here.status(NAME)
    engines = [item["url"] for item in status["cells"][0]["replicas"]]
    record = json.loads(here.sh(f"cat {RUN_DIR}/registry/c000.json").stdout)
    urls = [status["base_url"], record["state_url"], *engines]
    keys = [secrets["client key"], secrets["internal.key"], "exa-wrong"]
    order = json.dumps({"urls": urls, "keys": keys})
    asked = here.on("login", f"{here.env}/bin/python", "-c", REQUESTS, text=order)
    line.ran("requests with right and wrong keys", asked)
    codes = json.loads(asked.stdout)
    line.check("answers 200 and 401 among them", {200, 401} <= set(codes), sorted(set(codes)))
    for words in (
        ["chat", NAME, "hello", "--max-tokens", "4", "--key-file", KEY_FILE],
        ["status", NAME],
        ["logs", NAME],
        ["key", "list", NAME, "--json"],
        ["endpoint", NAME],
    ):
        done = here.exaslurm(*words)
        line.ran(f"exaslurm {words[0]}", done)
        said = done.stdout + done.stderr
        shown = [name for name, text in secrets.items() if text in said]
        line.check(f"exaslurm {words[0]} shows no secret", not shown, ", ".join(shown))


def check(line: Line, found: Findings, when: str) -> None:
    """Nothing but the files that are made to hold them, and the engines' own environment."""
    keepers = {
        f"login:{RUN_DIR}/keys/internal.key",
        f"login:{RUN_DIR}/keys/ray.token",
        f"login:{KEY_FILE}",
    }
    hits = found.without(["decoy"])
    kept = {hit.where for hit in hits if hit.where in keepers and hit.mode == "0600"}
    expected = [
        hit
        for hit in hits
        if hit.seen_by == "root" and (hit.where in kept or hit.kind == "environ")
    ]
    wrong = [hit for hit in hits if hit not in expected]
    for what, these in (
        ("in the argument list of a process", [hit for hit in wrong if hit.kind == "argv"]),
        ("in what Slurm tells", [hit for hit in wrong if hit.kind == "slurm"]),
        ("in a file other than its own", [h for h in wrong if h.seen_by == "root"]),
        (f"anywhere {disclosure.OTHER_USER} can read", [h for h in wrong if h.seen_by != "root"]),
    ):
        line.check(f"secrets {what}, {when}", not these, show([str(hit) for hit in these]))
    line.check(f"the files that hold them were searched, {when}", kept == keepers, len(kept))


def check_decoys(line: Line, found: Findings) -> None:
    """That the search finds what is to be found, with either pair of eyes."""
    hits = found.of("decoy")
    for what, seen in (
        ("an argument list", any(hit.kind == "argv" for hit in hits)),
        ("a file for all, by the other user", by_other(hits, "/dev/shm/decoy")),
        ("Base64 in a private file", any(hit.where.endswith("/coded") for hit in hits)),
        ("an environment, by root", any(hit.kind == "environ" for hit in hits)),
    ):
        line.check(f"the search finds a decoy in {what}", seen)
    private = [hit for hit in hits if hit.seen_by == disclosure.OTHER_USER]
    hidden = not any(hit.where.endswith("/coded") or hit.kind == "environ" for hit in private)
    line.check("but not what the other user cannot see", hidden)


def by_other(hits: list[disclosure.Hit], path: str) -> bool:
    where = f"{DECOY_HOST}:{path}"
    return any(hit.seen_by == disclosure.OTHER_USER and hit.where == where for hit in hits)


def remove_decoys(here: Lab) -> None:
    here.sh("kill $(cat /tmp/decoys/pids); rm -rf /dev/shm/decoy /tmp/decoys", host=DECOY_HOST)


def check_reach(line: Line, here: Lab, since_s: float, watch: ArgvWatch) -> None:
    """That the search reads the places in question: what must be there is found there."""
    status = here.status(NAME)
    generation = f"{RUN_DIR}/gen/{status['generation']}"
    submission = json.loads(here.sh(f"cat {generation}/submissions/c000.json").stdout)
    (cell,) = status["cells"]
    (head,) = (node["address"] for node in cell["nodes"] if node["node"] == "c1")
    known = {
        "job name": submission["job_name"],
        "path": RUN_DIR,
        "step": f"StepId={submission['job_id']}.",
        "address": head,
    }
    found = disclosure.search(here, known, since_s, watch)
    for what, name, place in (
        ("slurmctld's spool", "job name", "ctl:/var/spool/"),
        ("slurmd's spool", "path", "c1:/var/spool/"),
        ("slurmd's log", "step", "c1:/var/log/"),
        ("the logs of the run directory", "address", f"login:{generation}/logs/"),
        ("Ray's logs", "address", "c1:/tmp/xs-"),
    ):
        seen = [hit for hit in found.of(name) if hit.kind == "file" and hit.where.startswith(place)]
        line.check(f"searched, since it finds what must be there: {what}", bool(seen), len(seen))
    for what, kind in (("argument lists", "argv"), ("Slurm's answers", "slurm")):
        seen = [hit for hit in found.hits if hit.kind == kind]
        line.check(f"searched, since it finds what must be there: {what}", bool(seen), len(seen))


def show(lines: list[str]) -> str:
    return "\n".join([str(len(lines)), *lines[:30]])
