from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.core.codec import loads
from exaslurm.core.container import ContainerPlan
from exaslurm.core.plan import Layout, Plan
from exaslurm.errors import PlanError, SiteError
from exaslurm.render.scripts import render_all, render_script
from tests.render.plans import HEAD, make_plan

GOLDEN = Path(__file__).parent / "golden"
GEN_DIR = Path("/exa/shared/home/ada/exaslurm/hello/gen/1")
RUN_DIR = Path("/exa/shared/home/ada/exaslurm/hello")
SHELLCHECK = Path(sys.executable).parent / "shellcheck"

CONTAINER = ContainerPlan(
    runtime="apptainer",
    image="/images/vllm.sif",
    executable="apptainer",
    host_python="/apps/bin/python",
    package="host",
    home=None,
)
ODD_PATH = Path('/tmp/it\'s "a" $HOME #1 50% & `more`')


def rendered(plan: Plan, gen_dir: Path = GEN_DIR, dirs: tuple[Path, ...] = ()) -> str:
    return render_script(plan, plan.cells[0], gen_dir, RUN_DIR, dirs)


def assert_clean(*scripts: Path) -> None:
    """bash parses them, and shellcheck has nothing to say."""
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True, timeout=10)
    done = subprocess.run(
        [SHELLCHECK, "--severity=style", *scripts], text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


def run_launch(text: str) -> list[str]:
    """Run a script whose Python is ``printf``-like; the arguments that bootstrap would get."""
    done = subprocess.run(
        ["bash"], input=text, text=True, capture_output=True, check=True, timeout=10
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("layout", ["het", "single"])
def test_golden(layout: Layout) -> None:
    """To accept a change, run ``scripts/golden`` and read its diff."""
    plan = make_plan(
        layout, env={"NCCL_SOCKET_IFNAME": "hsn0"}, modules=["gcc/12"], prologue=["ulimit -l"]
    )
    # Whatever a plan holds changes its hash, which is nobody's to review.
    text = rendered(dataclasses.replace(plan, hash="0" * 64))
    file = GOLDEN / f"{layout}.sbatch"
    if os.environ.get("EXASLURM_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("layout", ["het", "single"])
def test_shellcheck(layout: Layout, tmp_path: Path) -> None:
    script = tmp_path / "c000.sbatch"
    script.write_text(rendered(make_plan(layout)))
    assert_clean(script)


def test_shellcheck_with_everything_odd(tmp_path: Path) -> None:
    plan = make_plan(
        python="/opt/it's here/python",
        env={"GREETING": "it's $(date) `date`", "EMPTY": ""},
        prologue=["echo 'line with \"quotes\"'", 'export A="${HOME}/x"'],
    )
    script = tmp_path / "c000.sbatch"
    script.write_text(rendered(plan, ODD_PATH / "gen" / "1"))
    assert_clean(script)


def test_same_bytes_twice() -> None:
    plan = make_plan(cells=3)
    files = render_all(plan, GEN_DIR, RUN_DIR)
    assert files == render_all(loads(Plan, files["plan.json"], where="x"), GEN_DIR, RUN_DIR)
    assert sorted(files) == [
        "plan.json",
        "scripts/c000.sbatch",
        "scripts/c001.sbatch",
        "scripts/c002.sbatch",
    ]


def test_local_has_no_scripts() -> None:
    assert list(render_all(make_plan("local"), GEN_DIR, RUN_DIR)) == ["plan.json"]


def test_components() -> None:
    het = rendered(make_plan("het")).splitlines()
    assert het.count("#SBATCH hetjob") == 1
    first, second = (part.splitlines() for part in "\n".join(het).split("#SBATCH hetjob"))
    assert f"#SBATCH --output={GEN_DIR}/logs/c000/batch.log" in first
    assert "#SBATCH --job-name=exa-hello-c000" in first
    # The batch script runs in the first component only.
    assert not any("--output" in line or "--job-name" in line for line in second)
    assert "hetjob" not in rendered(make_plan("single"))


def test_a_planned_option_is_not_rendered_twice() -> None:
    plan = make_plan(head=(*HEAD, ("output", "/elsewhere/%j.log")))
    lines = rendered(plan).splitlines()
    assert "#SBATCH --output=/elsewhere/%j.log" in lines
    assert sum("--output" in line for line in lines) == 1


def test_arguments_arrive_as_they_are() -> None:
    plan = make_plan(python="/usr/bin/printf", env={"WORDS": "it's $(date)"})
    # printf takes "-m" for its format; a stand-in that prints its arguments is needed.
    echo = "/usr/bin/env printf '%s\\n'"
    text = rendered(plan, ODD_PATH / "gen" / "1").replace("exec /usr/bin/printf", f"exec {echo}")
    words = run_launch(text)
    assert words == [
        "-m",
        "exaslurm.bootstrap.launch",
        "--gen-dir",
        str(ODD_PATH / "gen" / "1"),
        "--run-dir",
        str(RUN_DIR),
        "--cell",
        "c000",
    ]


@given(st.text(st.characters(exclude_characters="\n\x00", exclude_categories=("Cs",))))
def test_no_value_is_run(value: str) -> None:
    plan = make_plan(python="/usr/bin/printf", env={"VALUE": value})
    text = rendered(plan)
    text = text[: text.index("exec ")] + 'printf %s "$VALUE"\n'
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, timeout=10)
    assert done.returncode == 0, done.stderr
    assert done.stdout == value.encode()


def test_environment_is_set_after_the_prologue() -> None:
    text = rendered(make_plan(env={"B": "2", "A": "1"}, prologue=["module load x", "ulimit -l"]))
    assert text.index("module load x\nulimit -l") < text.index("export A=1\nexport B=2")


def test_prologue_may_use_unset_variables() -> None:
    plan = make_plan(prologue=['test -z "$NEVER_SET" && echo fine'])
    text = rendered(plan)
    assert run_launch(text[: text.index("# Everything else")]) == ["fine"]


def test_a_failing_prologue_ends_the_job() -> None:
    text = rendered(make_plan(prologue=["false"]))
    assert subprocess.run(["bash"], input=text, text=True, timeout=10).returncode == 1


@pytest.mark.parametrize(
    ("directive", "complaint"),
    [
        (("partition", "gpu\n#SBATCH --uid=0"), "line break"),
        (("gpu; rm -rf /", "1"), "long option"),
        (("--mem", "1"), "long option"),
    ],
)
def test_a_directive_cannot_break_out(directive: tuple[str, str], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        rendered(make_plan(head=(*HEAD, directive)))


def test_a_variable_name_cannot_break_out() -> None:
    with pytest.raises(PlanError, match="name of an environment variable"):
        rendered(make_plan(env={"A=1; rm -rf /; B": "x"}))


def test_a_backslash_in_the_log_path_is_refused() -> None:
    with pytest.raises(PlanError, match="backslash"):
        rendered(make_plan(), Path("/tmp/a\\b"))


# --- overriding -------------------------------------------------------------------------------


def test_override_of_a_block(tmp_path: Path) -> None:
    (tmp_path / "cell.sbatch.j2").write_text(
        '{% extends "package/cell.sbatch.j2" %}\n'
        "{% block modules %}\nmodule load python/3.11 # {{ plan.site | comment }}\n{% endblock %}\n"
        "{% block environment %}\n{{ super() }}export SITE={{ plan.site }}\n{% endblock %}\n"
    )
    plain = make_plan(env={"A": "it's"})
    text = rendered(plain, dirs=(tmp_path,))
    assert "\nmodule load python/3.11 # lab\n" in text
    assert "export A='it'\"'\"'s'\nexport SITE=lab\n" in text
    added = [line for line in text.splitlines() if line not in rendered(plain).splitlines()]
    assert added == ["module load python/3.11 # lab", "export SITE=lab"]


BLOCKS = ("shebang", "directives", "modules", "prologue", "environment", "container", "launch")


@pytest.mark.parametrize("block", BLOCKS)
def test_override_of_each_block(block: str, tmp_path: Path) -> None:
    """Every block can be left out of what comes, or added to, and nothing else changes."""
    plan = make_plan(
        env={"A": "1"}, modules=["gcc/12"], prologue=["ulimit -l"], container=CONTAINER
    )
    plain = rendered(plan).splitlines()
    template = tmp_path / "cell.sbatch.j2"
    before = '{% extends "package/cell.sbatch.j2" %}\n{% block ' + block + " %}\n"
    template.write_text(before + "{{ super() }}# the admin's\n{% endblock %}\n")
    added = rendered(plan, dirs=(tmp_path,)).splitlines()
    assert [line for line in added if line != "# the admin's"] == plain
    assert added.count("# the admin's") == 1
    template.write_text(before + "# the admin's\n{% endblock %}\n")
    replaced = rendered(plan, dirs=(tmp_path,)).splitlines()
    at = added.index("# the admin's")
    assert len(replaced) < len(added)
    assert set(replaced) <= set(added)
    assert replaced[replaced.index("# the admin's") + 1 :] == added[at + 1 :]


def test_override_of_one_container(tmp_path: Path) -> None:
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "apptainer.j2").write_text("module load {{ plan.site }}-apptainer\n")
    plan = make_plan(container=CONTAINER)
    text = rendered(plan, dirs=(tmp_path,))
    assert "\nmodule load lab-apptainer\n" in text
    assert "APPTAINER_TMPDIR" not in text
    assert "APPTAINER_TMPDIR" in rendered(plan)


def test_the_batch_script_runs_outside_of_the_container() -> None:
    lines = rendered(make_plan(container=CONTAINER)).splitlines()
    assert "exec /apps/bin/python -m exaslurm.bootstrap.launch \\" in lines


def test_modules_come_before_the_prologue_and_are_words() -> None:
    text = rendered(make_plan(modules=["gcc/12", "a b; date"], prologue=["module list"]))
    assert "\nmodule load gcc/12\nmodule load 'a b; date'\n" in text
    assert text.index("module load gcc/12") < text.index("module list")


def test_override_of_everything_is_quoted_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cell.sbatch.j2").write_text("#!/bin/bash\necho {{ gen_dir }} {{ cell.index }}\n")
    text = rendered(make_plan(), Path("/a b; date"), (tmp_path,))
    assert text == "#!/bin/bash\necho '/a b; date' 0\n"


def test_the_first_directory_wins(tmp_path: Path) -> None:
    for name in ("user", "site"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cell.sbatch.j2").write_text(f"{name}\n")
    assert rendered(make_plan(), dirs=(tmp_path / "user", tmp_path / "site")) == "user\n"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("one\n{% if %}\n", r"cell\.sbatch\.j2:2: "),
        ("one\ntwo {{ no_such_thing }}\n", r"cell\.sbatch\.j2:2: 'no_such_thing' is undefined"),
        ("{{ plan.deploymnt | q }}\n", "deploymnt"),
        ("{{ gen_dir | safe }}\n", "No filter named 'safe'"),
        ('{% extends "nowhere.j2" %}\n', r"no template 'nowhere\.j2'"),
    ],
)
def test_a_broken_template_is_named(tmp_path: Path, template: str, complaint: str) -> None:
    (tmp_path / "cell.sbatch.j2").write_text(template)
    with pytest.raises(SiteError, match=complaint):
        rendered(make_plan(), dirs=(tmp_path,))


def test_another_plan_has_another_hash() -> None:
    plan = make_plan()
    other = dataclasses.replace(plan, site="other").sealed()
    assert plan.hash[:12] in rendered(plan)
    assert other.hash[:12] in rendered(other)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nodes have Python 3.11")
def test_a_folder_of_our_name_where_sbatch_is_called_is_not_imported(tmp_path: Path) -> None:
    fake = tmp_path / "exaslurm" / "bootstrap"
    fake.mkdir(parents=True)
    (fake / "launch.py").write_text("print('the wrong one')")
    (tmp_path / "exaslurm" / "__init__.py").touch()
    (fake / "__init__.py").touch()
    done = subprocess.run(
        ["bash"],
        input=rendered(make_plan(python=sys.executable), tmp_path / "gen"),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=30,
    )
    assert "the wrong one" not in done.stdout
    assert str(tmp_path / "gen") in done.stderr, "the real one misses its plan"
