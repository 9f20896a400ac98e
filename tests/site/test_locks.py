"""Keys that an administrator's config keeps from the configs laid over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.errors import SiteError
from exaslurm.site import load
from exaslurm.site.load import load_site

ADMIN = """\
schema: exaslurm/site/v1
name: big
node_kinds: {gpu: {cpus: 64, gpus: 4}}
limits: {max_nodes: 8, max_time: 04:00:00}
gateway: {background: false}
locks: [limits, gateway.background, spec.account]
"""
OVER = "schema: exaslurm/site/v1\nname: {name}\nextends: big\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the host's own configs, with one in it."""
    directory = tmp_path / "etc"
    directory.mkdir()
    monkeypatch.setattr(load, "HOST_DIR", directory)
    (directory / "big.yaml").write_text(ADMIN)
    return directory


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"EXASLURM_SITE_CONFIG": str(tmp_path / "own"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / f"{name}.yaml").write_text(text)

    return write


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", ["big", "mine"])
def test_what_is_not_locked_may_change(
    name: str, environ: dict[str, str], put: Callable[[str, str], None]
) -> None:
    put(name, OVER.format(name=name) + "interface: ib0\ngateway: {bind: 0.0.0.0}\n")
    site = load_site(name, environ)
    assert (site.interface, site.gateway.bind, site.limits.max_nodes) == ("ib0", "0.0.0.0", 8)
    assert site.locks == ("limits", "gateway.background", "spec.account")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("limits: {max_nodes: 9}", "limits.max_nodes"),
        ("limits: {max_jobs: 9}", "limits.max_jobs"),
        ("gateway: {background: true}", "gateway.background"),
    ],
)
def test_a_locked_key_may_not(
    text: str, key: str, host: Path, environ: dict[str, str], put: Callable[[str, str], None]
) -> None:
    put("mine", OVER.format(name="mine") + text + "\n")
    with pytest.raises(SiteError) as caught:
        load_site("mine", environ)
    lock = key if key == "gateway.background" else "limits"
    assert str(caught.value).endswith(
        f"own/mine.yaml:4: {key}: locked by {host}/big.yaml:6: locks: {lock}"
    )


@pytest.mark.usefixtures("host")
def test_a_value_that_is_the_same_is_no_change(
    environ: dict[str, str], put: Callable[[str, str], None]
) -> None:
    put("mine", OVER.format(name="mine") + "limits: {max_nodes: 8}\n")
    assert load_site("mine", environ).limits.max_nodes == 8


def test_locks_cannot_be_taken_out(
    host: Path, environ: dict[str, str], put: Callable[[str, str], None]
) -> None:
    put("mine", OVER.format(name="mine") + "locks: [interface]\n")
    put("third", OVER.format(name="third").replace("big", "mine") + "interface: ib0\n")
    assert load_site("mine", environ).locks[-1] == "interface"
    with pytest.raises(SiteError, match=r"interface: locked by .*own/mine\.yaml:4: locks"):
        load_site("third", environ)
    put("third", OVER.format(name="third").replace("big", "mine") + "limits: {max_nodes: 9}\n")
    with pytest.raises(SiteError, match=rf"locked by {host}/big\.yaml:6: locks: limits"):
        load_site("third", environ)


def test_a_file_that_hides_the_hosts_keeps_its_locks(
    host: Path, environ: dict[str, str], put: Callable[[str, str], None]
) -> None:
    whole = ADMIN.replace("locks: [limits, gateway.background, spec.account]\n", "")
    put("big", whole)
    assert load_site("big", environ).limits.max_nodes == 8
    put("big", whole.replace("max_nodes: 8", "max_nodes: 80"))
    with pytest.raises(SiteError, match=rf"limits.max_nodes: locked by {host}/big\.yaml:6"):
        load_site("big", environ)
