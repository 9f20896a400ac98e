"""Site configs: where they are found, how they are laid over each other, what must hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.errors import SiteError
from exaslurm.site.load import load_site, search_path, site_files, site_names
from exaslurm.site.model import Site

BASE = "schema: exaslurm/site/v1\nname: {name}\nnode_kinds: {{cpu: {{cpus: 8}}}}\n"
Load = Callable[..., Site]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "USER": "exa1", "EXASLURM_SITE_CONFIG": str(tmp_path / "sites")}


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, text: str, directory: str = "sites") -> Path:
        path = tmp_path / directory / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    return write


def problems(name: str, environ: dict[str, str]) -> list[str]:
    with pytest.raises(SiteError) as caught:
        load_site(name, environ)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", ["generic", "lab", "local"])
def test_the_sites_that_come_along(name: str) -> None:
    site = load_site(name, {"HOME": "/home/exa1", "USER": "exa1"})
    assert site.name == name
    assert site.description


def test_search_order(environ: dict[str, str], put: Callable[..., Path], tmp_path: Path) -> None:
    user = put("mine", BASE.format(name="mine"), ".config/exaslurm/sites")
    assert site_files(environ)["mine"] == user
    first = put("mine", BASE.format(name="mine"))
    assert site_files(environ)["mine"] == first
    assert set(site_names(environ)) > {"generic", "lab", "local", "mine", "frontier", "vista"}
    environ["XDG_CONFIG_HOME"] = "/xdg"
    environ["EXASLURM_SITE_CONFIG"] = "/a::/b"
    assert [str(path) for path in search_path(environ)][:-1] == [
        "/a",
        "/b",
        "/etc/exaslurm/sites",
        "/xdg/exaslurm/sites",
    ]


def test_unknown_site_names_the_nearest(environ: dict[str, str]) -> None:
    with pytest.raises(SiteError, match=r"unknown site 'lba'; did you mean lab\?") as caught:
        load_site("lba", environ)
    assert environ["EXASLURM_SITE_CONFIG"] in (caught.value.remedy or "")
    with pytest.raises(SiteError, match="unknown site"):
        load_site("../lab", environ)


def test_extends_another(environ: dict[str, str], put: Callable[..., Path]) -> None:
    text = "schema: exaslurm/site/v1\nname: one\nextends: lab\nslurm: {hetjobs: false}\n"
    put("one", text + "node_kinds: {gpu: {cpus: 2}}\n")
    site, lab = load_site("one", environ), load_site("lab", environ)
    assert (site.slurm.hetjobs, lab.slurm.hetjobs) == (False, True)
    assert site.node_kinds["gpu"].cpus == 2
    assert site.node_kinds["gpu"].gpu_type == "a100"
    assert site.slurm.ray == lab.slurm.ray
    assert site.where("slurm.hetjobs").endswith("one.yaml:4")
    assert site.where("slurm.memory").endswith("lab.yaml:9")


def test_extends_its_own_name_further_down(
    environ: dict[str, str], put: Callable[..., Path]
) -> None:
    text = "schema: exaslurm/site/v1\nname: lab\nextends: lab\n"
    put("lab", text + "slurm: {hetjobs: false}\n")
    put("lab", text + "head: {cpus: 3}\n", ".config/exaslurm/sites")
    site = load_site("lab", environ)
    assert not site.slurm.hetjobs
    assert site.head.cpus == 3
    assert site.interface == "eth0"


def test_extends_in_a_circle(environ: dict[str, str], put: Callable[..., Path]) -> None:
    put("a", "schema: exaslurm/site/v1\nname: a\nextends: b\n")
    put("b", "schema: exaslurm/site/v1\nname: b\nextends: a\n")
    (found,) = problems("a", environ)
    assert "b.yaml:3: extends: 'a' extends this site itself" in found


def test_extends_what_is_not_there(environ: dict[str, str], put: Callable[..., Path]) -> None:
    put("a", "schema: exaslurm/site/v1\nname: a\nextends: lob\n")
    (found,) = problems("a", environ)
    assert "a.yaml:3: extends: unknown site 'lob'; did you mean lab?" in found


def test_a_problem_in_the_base_names_the_base(
    environ: dict[str, str], put: Callable[..., Path]
) -> None:
    put("base", BASE.format(name="base") + "interfaces: ib0\n")
    put("top", "schema: exaslurm/site/v1\nname: top\nextends: base\nslurm: {memory: some}\n")
    found = problems("top", environ)
    assert len(found) == 2
    assert "base.yaml:4: interfaces: unknown key" in found[0]
    assert "did you mean interface?" in found[0]
    assert "top.yaml:4: slurm.memory: must be one of per_node, all, none" in found[1]


def test_a_file_can_be_checked_by_its_path(put: Callable[..., Path]) -> None:
    path = put("mine", BASE.format(name="mine"))
    assert load_site(str(path), {}).name == "mine"
    with pytest.raises(SiteError, match=r"cannot read .*/none.yaml: No such file"):
        load_site(str(path.parent / "none.yaml"), {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: other", "name: must be 'mine', as the file (got 'other')"),
        ("workers: {kind: gpu}", "workers.kind: unknown node kind 'gpu'; did you mean cpu?"),
        ("head: {kind: cpus}", "head.kind: unknown node kind 'cpus'; did you mean cpu?"),
        ("ports: {block: 100}", "ports.block: must be at least 450"),
        ("ports: {first: 30000, last: 30100}", "ports.last: 30000-30100 holds no block of 500"),
        ("storage: {ram: /a/very/long/directory}", "storage.ram: longer than 16 characters"),
        ("storage: {ram: relative}", "storage.ram: must be an absolute path"),
        (
            "storage: {shared: $HOME/$PROJECT}",
            "only $HOME, $USER and $ACCOUNT are understood, not $PROJECT",
        ),
        ("env: {PATH: '/x:$PATH'}", "env.PATH: only $HOME, $USER and $ACCOUNT are understood"),
        ("storage: {state: $SCRATCH/x}", "only $HOME and $USER are understood, not $SCRATCH"),
        ("qos: {a: {}}\nnode_kinds: {cpu: {qos: b}}", "node_kinds.cpu.qos: unknown qos 'b'"),
        (
            "partitions: {a: {time_by_nodes: [{nodes: 2, max_time: 60}, {nodes: 1, max_time: 9}]}}",
            "partitions.a.time_by_nodes: sizes must rise (got [2, 1])",
        ),
        ("qos: {a: {min_nodes: 3, max_nodes: 2}}", "qos.a.min_nodes: 3 is more than a job may"),
        ("internet: {access: proxy}", "internet.proxy: is required with access proxy"),
        ("internet: {proxy: 'http://p:3128'}", "internet.access: must be proxy where there is one"),
        ("internet: {access: proxy, proxy: p}", "internet.proxy: "),
        ("unverified: [slurm.memry]", "unverified[0]: there is no key 'slurm.memry'; did you mean"),
        ("unverified: [node_kinds.gpu]", "there is no key 'node_kinds.gpu'; did you mean cpu?"),
        ("locks: [limit]", "locks[0]: there is no key 'limit'; did you mean limits?"),
        ("partitions: {a: {}}\nnode_kinds: {cpu: {partition: b}}", "unknown partition 'b'"),
        ("node_kinds: {cpu: {gpu_type: a100}}", "node_kinds.cpu.gpu_type: needs gpus"),
        ("node_kinds: {cpu: {gpus: 2, gpu_cpus: [0-7]}}", "node_kinds.cpu.gpu_cpus: 1 entries, 2"),
        ("node_kinds: {cpu: {require_gpus: yes}}", "node_kinds.cpu.require_gpus: needs gpus"),
        ("node_kinds: {cpu: {cpus: 8, reserved_cores: 8}}", "8 of 8 cpus leaves none"),
        ("node_kinds: {}", "node_kinds: must have at least 1 item(s)"),
        ("node_kinds: {cpu: {cpu: 8}}", "node_kinds.cpu.cpu: unknown key (got 8); did you mean"),
        ("node_kinds: {'a b': {}}", "node_kinds.a b: must match"),
        (
            "slurm: {mandatory_directives: [mem], forbidden_directives: [mem]}",
            "slurm.mandatory_directives: mem is also forbidden",
        ),
        (
            "limits: {max_time: 60, default_time: 61}",
            "limits.default_time: 61 is above max_time, 60",
        ),
        ("gateway: {homes: [roof]}", "gateway.homes[0]: must be one of login, service, job"),
        ("slurm: {ray: maybe}", "slurm.ray: must be true or false"),
        ("slurm: {ray: {object_store_mib: 10}}", "must be at least 80"),
        ("interface: 'eth0; rm'", "interface: "),
    ],
)
def test_what_must_hold(
    text: str, said: str, environ: dict[str, str], put: Callable[..., Path]
) -> None:
    keys = {line.split(":")[0] for line in text.splitlines()}
    base = BASE.format(name="mine").splitlines()
    kept = [line for line in base if line.split(":")[0] not in keys]
    put("mine", "\n".join([*kept, text]) + "\n")
    found = problems("mine", environ)
    assert len(found) == 1
    assert said in found[0]


def test_what_is_not_verified_may_have_a_remark(
    environ: dict[str, str], put: Callable[..., Path]
) -> None:
    keys = "[storage.local (no page names it), node_kinds.cpu.cpus, node_kinds, ports]"
    put("mine", BASE.format(name="mine") + f"unverified: {keys}\n")
    assert load_site("mine", environ).unverified[0] == "storage.local (no page names it)"


def test_ray_may_be_a_switch(environ: dict[str, str], put: Callable[..., Path]) -> None:
    put("mine", BASE.format(name="mine") + "slurm: {ray: no}\n")
    assert not load_site("mine", environ).slurm.ray.enabled


def test_state_directory_of_a_user(environ: dict[str, str], put: Callable[..., Path]) -> None:
    put("mine", BASE.format(name="mine") + "storage: {state: '/work/${USER}/x'}\n")
    put("none", BASE.format(name="none"))
    assert load_site("mine", environ).state_dir(environ) == "/work/exa1/x"
    assert load_site("none", environ).state_dir(environ) is None


def test_directories_that_one_may_not_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    real = os.stat

    def stat(path: object, *args: object, **kwargs: object) -> object:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(os, "stat", stat)
    environ = {"EXASLURM_SITE_CONFIG": str(closed), "HOME": str(tmp_path)}
    assert load_site("local", environ).name == "local"
    assert "local" in site_names(environ)
