"""Lists of engines: the simple and the full form, and what is said of a wrong one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.errors import UserError
from exaslurm.registry.engines_file import EnginesFile, load, of_urls

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "engines") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def _ids(file: EnginesFile) -> list[str]:
    return [engine.id for engine in file.engines]


def test_one_address_a_line(write: Write) -> None:
    path = write(
        "# ours\n\nhttp://nid0001:8000\n  http://NID0002:8000/  # spare\nunix:/run/engine.sock\n"
        "http://[fd00::1]:8000\n"
    )
    file = load(path)
    assert [engine.url for engine in file.engines] == [
        "http://nid0001:8000",
        "http://nid0002:8000",
        "unix:/run/engine.sock",
        "http://[fd00::1]:8000",
    ]
    assert _ids(file) == ["nid0001:8000", "nid0002:8000", "/run/engine.sock", "[fd00::1]:8000"]
    assert [e.node for e in file.engines] == ["nid0001", "nid0002", "localhost", "fd00::1"]
    assert {engine.key for engine in file.engines} == {None}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("https://a:1", "plain HTTP"),
        ("http://a", "use http://HOST:PORT or unix:/PATH"),
        ("http://a:0", "no such port"),
        ("http://a:70000", "no such port"),
        ("http://a:1/v1", "not an engine's address"),
        ("http://user:pw@a:1", "not an engine's address"),
        ("a:1", "not an engine's address"),
        ("http://a:1 http://b:1", "not an engine's address"),
        ("unix:relative", "not an engine's address"),
        ("unix:/" + "x" * 120, "107 bytes"),
        ("http://first:1", "already given in line 1"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(write: Write, line: str, says: str) -> None:
    path = write(f"http://first:1\n# c\n{line}\n")
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert says in str(caught.value)


def test_every_wrong_line_is_told(write: Write) -> None:
    path = write("http://a:1\nb\nc\n")
    with pytest.raises(UserError) as caught:
        load(path)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
        f"{path}:2",
        f"{path}:3",
    ]


def test_thousands_of_lines_are_read_at_once_and_without_packages(write: Write) -> None:
    path = write("".join(f"http://nid{i:04}:8000\n" for i in range(3072)))
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from exaslurm.registry.engines_file import load\n"
        "begin = time.process_time()\n"
        "file = load(Path(sys.argv[1]))\n"
        "seconds = time.process_time() - begin\n"
        "heavy = [m for m in ('yaml', 'pydantic', 'aiohttp') if m in sys.modules]\n"
        "print(len(file.engines), seconds < 0.1, heavy)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert said.stdout == "3072 True []\n", said.stderr


def test_the_full_form(write: Write, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"key-{name}\n")
        (tmp_path / name).chmod(0o600)
    file = load(
        write(
            f"""\
schema: exaslurm/engines/v1
key_file: {tmp_path}/one
engines:
  - http://nid0001:8000
  - url: http://nid0002:8000
    id: second
    models: [chat, chat:base]
    node: nid0002
    switch: s1
    version: 2
    weight: 0.5
    key_file: {tmp_path}/two
  - {{url: unix:/run/engine.sock, models: embed}}
"""
        )
    )
    first, second, third = file.engines
    assert (first.id, first.served_names, first.key) == ("nid0001:8000", (), "key-one")
    assert (second.id, second.key) == ("second", "key-two")
    assert second.served_names == ("chat", "chat:base")
    assert (second.switch, second.version, second.weight) == ("s1", "2", 0.5)
    assert third.served_names == ("embed",)
    assert file.key_files == (tmp_path / "one", tmp_path / "two")
    assert "key-" not in repr(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engines:\n- url: http://a:1\n  modles: x\n", ":3: engines[0].modles: unknown key"),
        ("engines:\n- url: a:1\n", ":2: engines[0].url: not an engine's address"),
        ("engines:\n- http://a:1\n- http://a:1\n", ":3: engines[1]: the address http://a:1 is alr"),
        (
            "engines:\n- {url: 'http://a:1', id: x}\n- {url: 'http://a:2', id: x}\n",
            "the id x is al",
        ),
        ("engines: []\n", "engines: must have at least 1"),
        ("schema: exaslurm/engines/v2\nengines: [http://a:1]\n", ":1: schema: must be"),
        ("engines:\n- {url: 'http://a:1', weight: 0}\n", "engines[0].weight: must be above 0"),
        ("key_file: /nowhere/key\nengines: [http://a:1]\n", ":1: key_file: cannot read /nowhere"),
        ("engines:\n\t- http://a:1\n", "indent with spaces, not tabs"),
    ],
)
def test_what_is_wrong_with_the_full_form(write: Write, text: str, says: str) -> None:
    path = write(text, "engines.yaml")
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_key_that_others_can_read_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o644)
    path = write(f"key_file: {tmp_path}/key\nengines: [http://a:1, http://b:1]\n")
    with pytest.raises(UserError, match=r"0644.*chmod 600") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "# nothing\n\n"])
def test_an_empty_list_is_told(write: Write, text: str) -> None:
    with pytest.raises(UserError, match="no engine in it"):
        load(write(text))


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"http://a:1\n\xff")
    with pytest.raises(UserError, match="binary:2: not UTF-8"):
        load(tmp_path / "binary")


def test_addresses_given_otherwise() -> None:
    assert _ids(of_urls(["http://a:1", "http://b:2"])) == ["a:1", "b:2"]
    with pytest.raises(UserError, match="not an engine's address"):
        of_urls(["a"])


def test_a_long_list_in_the_full_form_is_read_in_seconds(write: Write) -> None:
    items = "".join(f"- {{url: 'http://n{i}:8000', switch: s{i // 32}}}\n" for i in range(3072))
    begin_s = time.process_time()
    assert len(load(write("engines:\n" + items)).engines) == 3072
    assert time.process_time() - begin_s < 10
