"""Writes down which threads touch a directory, in every Python that has this on its path.

``SPY_ROOT``: the directory; ``SPY_LOG``: where to write (elsewhere); nothing is written down but
while the file ``SPY_LOG.on`` is there. A line is one JSON object: program, thread, what, path.
"""

import json
import os
import sys
import threading

ROOT, LOG = os.environ.get("SPY_ROOT"), os.environ.get("SPY_LOG")
EVENTS = frozenset((
    "open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link",
    "os.symlink", "os.chmod", "os.truncate", "os.utime", "shutil.rmtree",
))  # fmt: skip
LOOKS = ("stat", "lstat", "access", "readlink")


def install(root: str, log: str) -> None:
    stat, on = os.stat, log + ".on"
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    busy = threading.local()

    def note(what: str, path: object) -> None:
        if getattr(busy, "now", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return
        text = os.fsdecode(path)
        if not text.startswith(root):
            return
        busy.now = True
        try:
            stat(on)
            line = [" ".join(sys.orig_argv[1:4]), threading.current_thread().name, what, text]
            os.write(fd, json.dumps(line).encode() + b"\n")
        except OSError:
            pass
        finally:
            busy.now = False

    sys.addaudithook(lambda event, args: note(event, args[0]) if event in EVENTS else None)

    def spied(name: str) -> None:
        real = getattr(os, name)

        def call(path, *args, **more):  # type: ignore[no-untyped-def]
            note(f"os.{name}", path)
            return real(path, *args, **more)

        setattr(os, name, call)

    for name in LOOKS:
        spied(name)


if ROOT and LOG:
    install(ROOT, LOG)
