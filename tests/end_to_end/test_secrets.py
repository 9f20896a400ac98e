"""No secret of a deployment is to be seen where it does not belong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance import disclosure, secret_search  # isort: skip
from acceptance.argv_watch import ArgvWatch  # isort: skip
from acceptance.path import line_03  # isort: skip

SECRET = "vI-7p1Q_cfW0aZ9xYyG3nTq8LhR5uEoB"


@pytest.mark.lab
@pytest.mark.timeout(400)
def test_a_deployment_of_simulated_engines(wide_lab: Lab, line: Proof) -> None:
    line_03.prove(line, wide_lab, line_03.SIMULATED)
    assert line.wrong == []


def order(root: Path, **more: object) -> dict[str, object]:
    base = {"secrets": {"it": SECRET}, "roots": [str(root)], "skip": [], "since_s": 0.0}
    return {**base, "serve": False, **more}


@pytest.mark.parametrize("before", ["", "k", "kk", "kkk"])
@pytest.mark.parametrize("form", ["plain", "hex", "base64"])
def test_the_search_knows_how_a_secret_may_be_written(
    tmp_path: Path, before: str, form: str
) -> None:
    import base64

    raw = f"{before}{SECRET} and more".encode()
    text = {"plain": raw, "hex": raw.hex().encode(), "base64": base64.b64encode(raw)}[form]
    (tmp_path / "file").write_bytes(text)
    (hit,) = secret_search.main(order(tmp_path))["hits"]
    assert hit["where"] == str(tmp_path / "file")
    assert hit["form"].startswith(form)


def test_the_search_reads_across_its_chunks(tmp_path: Path) -> None:
    lead = b"." * (secret_search.CHUNK - len(SECRET) // 2)
    (tmp_path / "file").write_bytes(lead + SECRET.encode() + lead)
    assert len(secret_search.main(order(tmp_path))["hits"]) == 1


def test_the_search_looks_at_names_links_and_argument_lists(tmp_path: Path) -> None:
    (tmp_path / SECRET).mkdir()
    (tmp_path / "link").symlink_to(SECRET)
    (tmp_path / "skipped").mkdir()
    (tmp_path / "skipped" / "file").write_text(SECRET)
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, SECRET], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = secret_search.main(order(tmp_path, skip=[str(tmp_path / "skipped")]))
        child.communicate()
    assert sorted((hit["kind"], hit["where"]) for hit in found["hits"]) == [
        ("argv", f"/proc/{child.pid}/cmdline"),
        ("name", str(tmp_path / "link")),
        ("name", str(tmp_path / SECRET)),
    ]


def test_the_search_leaves_pipes_and_old_files_alone(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text(SECRET)
    later = (tmp_path / "file").stat().st_ctime + 1
    assert secret_search.main(order(tmp_path, since_s=later))["hits"] == []


def test_short_lived_argument_lists_are_seen() -> None:
    with ArgvWatch() as watch:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)", SECRET], check=True)
    assert any(SECRET.encode() in argv for argv in watch.seen)


def test_the_program_is_whole(tmp_path: Path) -> None:
    """It runs by itself, from a string, with orders from stdin."""
    (tmp_path / "file").write_text(SECRET)
    program = disclosure.SEARCH.read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        input=json.dumps(order(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [hit["secret"] for hit in json.loads(done.stdout)["hits"]] == ["it"]
