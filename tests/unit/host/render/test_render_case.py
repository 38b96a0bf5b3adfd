"""The thin image of a case: what it carries of the image side, and what it leaves behind."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.compile import compiled_manifest
from flagbench.catalog.model import Catalog, Stack
from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, canonical
from flagbench.render.case import read_code, render_case
from flagbench.render.dockerfile import Dockerfile, Instruction
from flagbench.render.model import Rendered
from flagbench.render.stack import render_stack
from flagbench.render.steps import wheel_key

EVIL = ["x\nRUN touch /y", "$(touch /y)", "{{ 7 * 7 }}", 'x", "y', "../x"]


@pytest.fixture(scope="module")
def lock(catalog: Catalog, make_lock: Callable[..., Lock]) -> Lock:
    """The lock of that stack."""
    return make_lock(catalog.stacks["cpu"])


@pytest.fixture(scope="module")
def heavy(catalog: Catalog, images: Path, lock: Lock) -> Rendered:
    """The stack that the case stands on."""
    return render_stack(catalog.stacks["cpu"], lock, images)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An image side with two cases, two stacks, and what Python and editors leave behind."""
    files = {
        "__init__.py": "",
        "contract.py": "contract",
        "telemetry/nvml.py": "nvml",
        "cases/distilbert/case.json": "stale",
        "cases/distilbert/workload.py": "workload",
        "cases/distilbert/tiny/train.tsv": "a\t1",
        "cases/glm/case.json": "{}",
        "cases/glm/workload.py": "glm",
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


def test_it_carries_the_case_and_no_other(
    catalog: Catalog, images: Path, heavy: Rendered, lock: Lock, package: Path
) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    rendered = render_case(case, cpu, heavy, lock, read_code(package), images)
    assert list(rendered.files) == [
        "Dockerfile",
        "flagbench_cases/__init__.py",
        "flagbench_cases/cases/distilbert/case.json",
        "flagbench_cases/cases/distilbert/tiny/train.tsv",
        "flagbench_cases/cases/distilbert/workload.py",
        "flagbench_cases/contract.py",
        "flagbench_cases/shared/stacks/cpu.json",
        "flagbench_cases/telemetry/nvml.py",
        "stack.digest",
    ]
    assert rendered.files["flagbench_cases/cases/distilbert/case.json"].decode() == compiled_manifest(case)
    assert json.loads(rendered.files["flagbench_cases/shared/stacks/cpu.json"])["name"] == "cpu"
    assert rendered.dockerfile.count("\nCOPY ") == 1
    assert "\nRUN " not in rendered.dockerfile


def test_its_digest_changes_with_the_code_the_manifest_and_the_stack(
    catalog: Catalog, images: Path, heavy: Rendered, lock: Lock, package: Path
) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    digests = [render_case(case, cpu, heavy, lock, read_code(package), images).digest]
    other = {**case.raw, "title": "another"}
    digests.append(render_case(replace(case, raw=other), cpu, heavy, lock, read_code(package), images).digest)
    changed = replace(heavy, files={**heavy.files, "inputs/README": b"another"})
    digests.append(render_case(case, cpu, changed, lock, read_code(package), images).digest)
    (package / "contract.py").write_text("another", encoding="utf-8")
    digests.append(render_case(case, cpu, heavy, lock, read_code(package), images).digest)
    assert len(set(digests)) == 4


def test_a_case_without_code_is_refused(
    catalog: Catalog, images: Path, heavy: Rendered, lock: Lock, package: Path
) -> None:
    case = replace(catalog.cases["distilbert"], name="bert")
    with pytest.raises(FlagbenchError) as caught:
        render_case(case, catalog.stacks["cpu"], heavy, lock, read_code(package), images)
    assert "bert" in str(caught.value)


def test_a_case_cannot_take_the_name_of_the_stacks_images(
    catalog: Catalog, images: Path, heavy: Rendered, lock: Lock, package: Path
) -> None:
    case = replace(catalog.cases["distilbert"], name="stack")
    with pytest.raises(FlagbenchError) as caught:
        render_case(case, catalog.stacks["cpu"], heavy, lock, read_code(package), images)
    assert "stack" in str(caught.value)


@pytest.mark.parametrize("value", EVIL)
def test_no_name_or_title_adds_an_instruction(
    value: str, catalog: Catalog, images: Path, heavy: Rendered, lock: Lock, package: Path
) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    plain = render_case(case, cpu, heavy, lock, read_code(package), images).dockerfile
    titled = render_case(replace(case, title=value), cpu, heavy, lock, read_code(package), images).dockerfile
    assert titled.splitlines()[2:] == plain.splitlines()[2:]
    with pytest.raises(FlagbenchError):
        render_case(replace(case, name=value), cpu, heavy, lock, read_code(package), images)
    with pytest.raises(FlagbenchError):
        render_case(case, replace(cpu, name=value), heavy, lock, read_code(package), images)


# -- packages that only some cases need ---------------------------------------------------------------------------


@pytest.fixture
def render(
    catalog: Catalog, images: Path, full: Stack, make_lock: Callable[..., Lock], package: Path
) -> Callable[..., Rendered]:
    """Renders distilbert, given what it needs, on a stack that compiles two packages and has one more for cases."""

    def made(*needs: str, stack: Stack = full) -> Rendered:
        case = replace(catalog.cases["distilbert"], needs=needs)
        lock = make_lock(stack)
        return render_case(case, stack, render_stack(stack, lock, images), lock, read_code(package), images)

    return made


def instructions(rendered: Rendered, *names: str) -> list[Instruction]:
    return list(Dockerfile(rendered.dockerfile).named(*names))


def stages(rendered: Rendered) -> list[str]:
    return [instruction.words[-1] for instruction in instructions(rendered, "FROM")]


def test_a_case_that_needs_nothing_compiles_nothing(render: Callable[..., Rendered]) -> None:
    rendered = render()
    assert len(instructions(rendered, "FROM")) == 1
    assert instructions(rendered, "RUN", "USER") == []
    assert not any(path.startswith(("steps/", "inputs/")) for path in rendered.files)


def test_each_package_is_compiled_in_a_stage_that_waits_for_no_other(render: Callable[..., Rendered]) -> None:
    rendered = render("flash-attn", "deepspeed")
    assert stages(rendered) == ["wheel-flash-attn", "wheel-deepspeed", "wheels", "${STACK_IMAGE}"]
    assert [i.words[0] for i in instructions(rendered, "FROM")] == [
        "${STACK_IMAGE}",
        "${STACK_IMAGE}",
        "scratch",
        "${STACK_IMAGE}",
    ]
    for name in ("flash-attn", "deepspeed"):
        text = rendered.files[f"steps/compile-{name}/requirements.lock"].decode()
        assert [line.partition("==")[0] for line in text.splitlines() if "==" in line] == [name]
    assert instructions(rendered, "USER")[-1].words == ("1000:0",)


def test_only_what_is_named_is_there(render: Callable[..., Rendered]) -> None:
    compiled, fetched = render("deepspeed"), render("megatron-core")
    assert stages(compiled) == ["wheel-deepspeed", "wheels", "${STACK_IMAGE}"]
    assert stages(fetched) == ["${STACK_IMAGE}"]
    assert b"megatron-core==" in fetched.files["steps/optional/requirements.lock"]
    assert "flash-attn" not in compiled.dockerfile + fetched.dockerfile


def test_the_setup_of_flash_attn_finds_git(catalog: Catalog, render: Callable[..., Rendered]) -> None:
    """It updates a submodule, whatever is asked of it; so does every stack's that compiles it."""
    for stack in catalog.stacks.values():
        for package in stack.build.compiled:
            if package.name == "flash-attn":
                (run,) = (i for i in instructions(render("flash-attn", stack=stack), "RUN") if "compile-" in i.text)
                words = shlex.split(run.text)
                assert "git" in words[words.index("apt") :]
                assert words.index("apt") < words.index("wheel")


def test_how_many_jobs_compile_is_no_part_of_the_image(catalog: Catalog, render: Callable[..., Rendered]) -> None:
    assert "ARG MAX_JOBS=1" in render("flash-attn").dockerfile
    for stack in catalog.stacks.values():
        assert not any("MAX_JOBS" in package.env for package in stack.build.compiled)


def test_a_wheel_s_key_changes_with_what_decides_the_wheel_and_with_nothing_else(
    full: Stack, make_lock: Callable[..., Lock]
) -> None:
    def key(stack: Stack = full, **options: Any) -> str:
        package = next(each for each in stack.build.compiled if each.name == "flash-attn")
        return wheel_key(package, stack, make_lock(stack, **options))

    def without(stack: Stack, name: str) -> Stack:
        lines = tuple(line for line in stack.build.packages if not line.startswith(name))
        return replace(stack, build=replace(stack.build, packages=lines))

    assert key() == key(without(full, "transformers")) == key(extra=("zstandard==0.23.0",))
    flash = full.build.compiled[0]
    others = [
        replace(full, python="3.11"),
        replace(full, platform="linux/arm64"),
        replace(full, build=replace(full.build, compiled=(replace(flash, version="2.7.4"),))),
        replace(full, build=replace(full.build, compiled=(replace(flash, env={}),))),
        without(full, "torch"),
    ]
    assert len({key(), *map(key, others)}) == 6


REFUSED = ("name", "env name", "apt")


@pytest.mark.parametrize("value", [*EVIL, "${HOME}", "x; touch /y", "x \\", "`touch /y`"])
@pytest.mark.parametrize("field", [*REFUSED, "version", "reason", "env"])
def test_no_value_of_a_package_to_compile_adds_an_instruction(
    field: str, value: str, full: Stack, render: Callable[..., Rendered], make_lock: Callable[..., Lock]
) -> None:
    def with_value(text: str) -> Rendered:
        plain = full.build.compiled[0]
        values: Any = {"env": {"A": text}, "env name": {text: "1"}, "apt": (text,)}.get(field, text)
        package = replace(plain, **{field.partition(" ")[0]: values})
        return render(canonical(package.name), stack=replace(full, build=replace(full.build, compiled=(package,))))

    if field in REFUSED or (field == "env" and not value.isprintable()):
        with pytest.raises(FlagbenchError):
            with_value(value)
        return
    evil, plain = with_value(value), with_value("plain")
    assert [(i.name, len(shlex.split(i.text))) for i in instructions(evil, "FROM", "RUN", "USER", "ARG")] == [
        (i.name, len(shlex.split(i.text))) for i in instructions(plain, "FROM", "RUN", "USER", "ARG")
    ]
    if field == "env":
        (run,) = (i for i in instructions(evil, "RUN") if "compile-" in i.text)
        assert f"A={value}" in shlex.split(run.text)
