"""The thin image of a case: what it carries of the image side, and what it leaves behind."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.images.render.case import read_code, render_case
from flagbench.images.render.directory import BuildDirectory
from flagbench.images.render.stack import render_stack
from flagbench.images.render.steps import wheel_key
from flagbench.images.render.templates import Templates
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import OtherPython, Stack

from .conftest import Render, in_build, instructions, lock_of


@pytest.fixture
def case(catalog: Catalog) -> Case:
    return catalog.cases["distilbert"]


@pytest.fixture
def cpu(catalog: Catalog) -> Stack:
    return catalog.stacks["cpu"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An image side with two cases, two stacks, and what Python and editors leave behind."""
    files = {
        "__init__.py": "",
        "contract.py": "contract",
        "telemetry/monitors/nvml.py": "nvml",
        "cases/distilbert/case.json": "stale",
        "cases/distilbert/workload.py": "workload",
        "cases/distilbert/tiny/train.tsv": "a\t1",
        "cases/glm/case.json": "{}",
        "cases/glm/workload.py": "glm",
        "cases/roofs/case.json": "{}",
        "shared/stacks/cpu.json": "stale",
        "shared/stacks/other.json": "{}",
        "__pycache__/rank.cpython-311.pyc": "",
        "cases/distilbert/.data.tsv.swp": "",
        ".git/config": "",
    }
    for name, text in files.items():
        path = tmp_path / "flagbench_cases" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "flagbench_cases"


@pytest.fixture
def render(templates: Templates, package: Path) -> Render:
    """Renders a case on a stack, perhaps on another image of the stack than the one that is rendered now."""

    def made(case: Case, stack: Stack, heavy: BuildDirectory | None = None) -> BuildDirectory:
        lock = lock_of(stack)
        heavy = heavy or render_stack(stack, lock, templates)
        return render_case(case, stack, heavy, lock, read_code(package), templates)

    return made


def stages(rendered: BuildDirectory) -> list[str]:
    return [instruction.words[-1] for instruction in instructions(rendered, "FROM")]


def test_it_carries_the_case_and_no_other(case: Case, cpu: Stack, render: Render) -> None:
    rendered = render(case, cpu)
    assert list(rendered.files) == [
        "Dockerfile",
        "flagbench_cases/__init__.py",
        "flagbench_cases/cases/distilbert/case.json",
        "flagbench_cases/cases/distilbert/tiny/train.tsv",
        "flagbench_cases/cases/distilbert/workload.py",
        "flagbench_cases/cases/roofs/case.json",
        "flagbench_cases/contract.py",
        "flagbench_cases/shared/stacks/cpu.json",
        "flagbench_cases/telemetry/monitors/nvml.py",
        "stack.digest",
    ]
    assert rendered.files["flagbench_cases/cases/distilbert/case.json"].decode() == case.compiled
    assert json.loads(rendered.files["flagbench_cases/shared/stacks/cpu.json"])["name"] == "cpu"


def test_a_case_of_a_family_carries_the_code_of_another(case: Case, cpu: Stack, render: Render) -> None:
    other = replace(case, name="other", family=case.name, raw={**case.raw, "name": "other"})
    files = render(other, cpu).files
    assert [path for path in files if path.startswith("flagbench_cases/cases/distilbert/")] == [
        "flagbench_cases/cases/distilbert/tiny/train.tsv",
        "flagbench_cases/cases/distilbert/workload.py",
    ]
    assert json.loads(files["flagbench_cases/cases/other/case.json"])["name"] == "other"


def test_digest_changes_with_code_manifest_and_stack(
    case: Case, cpu: Stack, stack_image: Render, render: Render, package: Path
) -> None:
    heavy = stack_image(cpu)
    changed = replace(heavy, files={**heavy.files, "inputs/README": b"another"})
    digests = {
        render(case, cpu).digest,
        render(replace(case, raw={**case.raw, "unit": "another"}), cpu).digest,
        render(case, cpu, changed).digest,
    }
    (package / "contract.py").write_text("another", encoding="utf-8")
    digests.add(render(case, cpu).digest)
    assert len(digests) == 4
    assert render(replace(case, raw={**case.raw, "title": "another"}), cpu).digest in digests  # no image reads it


# -- packages that only some cases need ---------------------------------------------------------------------------


@pytest.fixture
def render_needs(case: Case, full: Stack, render: Render) -> Render:
    """Renders a case, given what it needs, on a stack that compiles two packages and has one more for cases."""
    return lambda *needs, stack=full: render(replace(case, needs=needs), stack)


def test_a_case_that_needs_nothing_compiles_nothing(render_needs: Render) -> None:
    rendered = render_needs()
    assert stages(rendered) == ["${STACK_IMAGE}"]
    assert instructions(rendered, "RUN", "USER") == []
    assert len(instructions(rendered, "COPY")) == 2
    assert not any(path.startswith(("steps/", "inputs/")) for path in rendered.files)


def test_each_package_is_compiled_in_its_own_stage(render_needs: Render) -> None:
    rendered = render_needs("flash-attn", "deepspeed")
    assert stages(rendered) == ["toolkit", "wheel-flash-attn", "wheel-deepspeed", "wheels", "${STACK_IMAGE}"]
    images = [i.words[1] for i in instructions(rendered, "FROM")]
    assert images == ["${TOOLKIT}", "${STACK_IMAGE}", "${STACK_IMAGE}", "scratch", "${STACK_IMAGE}"]
    for name in ("flash-attn", "deepspeed"):
        text = rendered.files[f"steps/compile-{name}/requirements.lock"].decode()
        assert [line.partition("==")[0] for line in text.splitlines() if "==" in line] == [name]
    assert instructions(rendered, "USER")[-1].words == ["USER", "1000:0"]


def test_a_package_is_compiled_with_the_whole_toolkit(full: Stack, render_needs: Render) -> None:
    """As a base that has the device's compiler is compiled on; another toolkit makes another wheel."""
    mounted = "--mount=type=bind,from=toolkit,source=/usr/local/cuda-11.8,target=/usr/local/cuda-11.8"
    rendered = render_needs("flash-attn")
    assert [mounted in i.words for i in instructions(rendered, "RUN") if "steps/compile-" in i.text] == [True]
    base_has_it = render_needs("flash-attn", stack=in_build(full, toolkit=None))
    assert stages(base_has_it) == ["wheel-flash-attn", "wheels", "${STACK_IMAGE}"]
    keys = [set(re.findall(r"flash-attn-[0-9a-f]{12}", each.dockerfile)) for each in (rendered, base_has_it)]
    assert [len(key) for key in keys] == [1, 1]
    assert keys[0] != keys[1]


def test_only_what_is_named_is_there(render_needs: Render) -> None:
    fetched = render_needs("megatron-core")
    assert stages(fetched) == ["${STACK_IMAGE}"]
    assert b"megatron-core==" in fetched.files["steps/optional/requirements.lock"]
    assert "flash-attn" not in fetched.dockerfile


def test_wheel_for_another_python_is_installed_beside_ours(full: Stack, render_needs: Render) -> None:
    """Alone: pip takes every package of such a command for the other Python."""
    other = OtherPython("plain", "0.4.0", "3.10", "its Python code runs with this Python, too")
    stack = replace(full, build=replace(full.build, other_python=(other,)))
    rendered = render_needs("plain", "megatron-core", stack=stack)
    assert pins(rendered, "python-3.10") == ["plain==0.4.0"]
    assert "plain==0.4.0" not in pins(rendered, "optional")
    (run,) = (i.text for i in instructions(rendered, "RUN") if "source=steps/python-3.10" in i.text)
    words = shlex.split(run)
    assert words[words.index("--python-version") + 1] == "3.10"
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(words)
    assert "site.getsitepackages()" in words[words.index("--target") + 1]
    assert "--upgrade" in words, "a folder of the base with the same name would stay as it is"
    assert not any("python-3.10" in path for path in render_needs("megatron-core", stack=stack).files)


@pytest.mark.parametrize("interpreter", [None, "/opt/conda/bin/python3"])
def test_what_a_base_s_python_has_is_replaced(full: Stack, render_needs: Render, interpreter: str | None) -> None:
    """Uninstalled before, where pip can; a virtual environment of ours has nothing."""
    other = OtherPython("plain", "0.4.0", "3.10", "its Python code runs with this Python, too")
    stack = replace(full, build=replace(full.build, interpreter=interpreter, other_python=(other,)))
    rendered = render_needs("plain", "megatron-core", "flash-attn", stack=stack)
    installs = {}
    for run in instructions(rendered, "RUN"):
        step = re.search(r"source=steps/([^,]+)", run.text)
        if step and " pip " in run.text and " install " in run.text:
            installs[step[1]] = shlex.split(run.text)
    assert installs.keys() == {"wheels", "optional", "python-3.10"}
    over_base = interpreter is not None
    for step, words in installs.items():
        assert ("--ignore-installed" in words) is over_base
        assert ("/media/uninstall.py" in words) is over_base
        assert (f"steps/{step}/uninstall.py" in rendered.files) is over_base
    assert "steps/compile-flash-attn/uninstall.py" not in rendered.files


def pins(rendered: BuildDirectory, step: str) -> list[str]:
    """The packages of a step."""
    text = rendered.files[f"steps/{step}/requirements.lock"].decode()
    return [line.split()[0] for line in text.splitlines() if "==" in line]


def test_wheel_key_changes_only_with_what_decides_the_wheel(full: Stack) -> None:
    def key(stack: Stack = full, **options: Any) -> str:
        package = next(each for each in stack.build.compiled if each.name == "flash-attn")
        return wheel_key(package, stack, lock_of(stack, **options))

    def without(stack: Stack, name: str) -> Stack:
        lines = tuple(line for line in stack.build.packages if not line.startswith(name))
        return in_build(stack, packages=lines)

    assert key() == key(without(full, "transformers")) == key(extra=("zstandard==0.23.0",))
    flash = full.build.compiled[0]
    others = [
        replace(full, python="3.11"),
        replace(full, platform="linux/arm64"),
        in_build(full, compiled=(replace(flash, version="2.7.4"),)),
        in_build(full, compiled=(replace(flash, env={}),)),
        without(full, "torch"),
    ]
    assert len({key(), *map(key, others)}) == 6
