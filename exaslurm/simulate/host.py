"""``python -m exaslurm.simulate.host``: a process with several simulated nodes.

Orders come in on stdin, news go out on stdout, one JSON line each (see ``world``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exaslurm.agent.settings import Settings
from exaslurm.core.codec import loads
from exaslurm.core.plan import Plan
from exaslurm.engines.middleware import KEY_VARIABLE
from exaslurm.keys.secrets import read_secret
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.simulate.node import Node, times
from exaslurm.util.clock import Clock
from exaslurm.util.files import read_text
from exaslurm.util.logthread import LogThread

log = logging.getLogger("exaslurm.simulate.host")

GRACE_S = 32.0


class Host:
    """The nodes of this process, and what is done to them."""

    def __init__(self, directory: Path, nodes: Mapping[str, str], clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._plans: dict[Path, Plan] = {}
        self.nodes = {
            name: Node(name, address, directory / name, clock, self._on_end)
            for name, address in nodes.items()
        }

    async def run(self) -> None:
        """Carry out orders until stdin ends; then nothing is left."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 22)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            task = asyncio.create_task(self._carry_out(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))

    async def _carry_out(self, order: dict[str, Any]) -> None:
        node = self.nodes[order["node"]]
        try:
            done = await getattr(self, "_" + order["do"])(node, order)
        except Exception:
            log.exception("%s", order)
            done = False
        if "ask" in order:
            self._say({"answer": order["ask"], "done": done})

    async def _begin(self, node: Node, order: dict[str, Any]) -> bool:
        gen_dir = GenerationDir(Path(order["gen_dir"]))
        run_dir = RunDir(Path(order["run_dir"]))
        if gen_dir.path not in self._plans:
            text = await asyncio.to_thread(read_text, gen_dir.plan)
            self._plans[gen_dir.path] = loads(Plan, text, where=str(gen_dir.plan))
            os.environ[KEY_VARIABLE] = await asyncio.to_thread(read_secret, run_dir.internal_key)
        settings = Settings(
            node_dir=self._directory / node.name / order["job"],
            run_dir=run_dir,
            gen_dir=gen_dir,
            cell_name=order["cell"],
            het_group=0,
            head_host=order["head"],
            port_base=order["port_base"],
            local=False,
            grace_s=GRACE_S,
            plan=self._plans[gen_dir.path],
            environ={**os.environ, "SLURM_NODEID": str(order["order"])},
            times=times(self._clock),
        )
        await node.begin(order["job"], settings, order["order"])
        return True

    async def _terminate(self, node: Node, order: dict[str, Any]) -> bool:
        node.terminate(order["job"])
        return True

    async def _kill(self, node: Node, order: dict[str, Any]) -> bool:
        if node.job == order["job"]:
            await node.kill()
        return True

    async def _vanish(self, node: Node, _order: dict[str, Any]) -> bool:
        await node.vanish()
        return True

    async def _kill_agent(self, node: Node, _order: dict[str, Any]) -> bool:
        return node.kill_agent()

    async def _kill_engine(self, node: Node, order: dict[str, Any]) -> bool:
        return self._to_engine(node, order["number"], hang=False)

    async def _hang_engine(self, node: Node, order: dict[str, Any]) -> bool:
        return self._to_engine(node, order["number"], hang=True)

    async def _kill_controller(self, node: Node, _order: dict[str, Any]) -> bool:
        pid = node.children.pid_of("controller") if node.children else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        return pid is not None

    async def _look(self, node: Node, _order: dict[str, Any]) -> dict[str, Any]:
        children = node.children
        return {
            "job": node.job,
            "engines": len(children.engines) if children else 0,
            "controller": children.pid_of("controller") if children else None,
        }

    @staticmethod
    def _to_engine(node: Node, number: int, *, hang: bool) -> bool:
        found = (
            [e for e in node.children.engines.values() if not e.is_hung] if node.children else []
        )
        if not found:
            return False
        engine = found[number % len(found)]
        if hang:
            engine.hang()
        else:
            engine.kill()
        return True

    def _on_end(self, job: str, node: str, code: int) -> None:
        self._say({"ended": job, "node": node, "code": code})

    @staticmethod
    def _say(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exaslurm.simulate.host")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--node", action="append", default=[], metavar="NAME=ADDRESS")
    options = parser.parse_args()
    os.umask(0o077)
    lines = LogThread("host")
    nodes = dict(item.split("=", 1) for item in options.node)
    asyncio.run(Host(options.directory, nodes, Clock.of(os.environ)).run())
    lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
