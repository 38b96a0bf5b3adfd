"""The thin image of a case: what it carries of the image side, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flagbench.catalog.compile import compile_case
from flagbench.catalog.model import Catalog
from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock
from flagbench.render.case import Code, render_case
from flagbench.render.model import Rendered
from flagbench.render.stack import render_stack

EVIL = ["x\nRUN touch /y", "$(touch /y)", "{{ 7 * 7 }}", 'x", "y', "../x"]


@pytest.fixture(scope="module")
def heavy(catalog: Catalog, images: Path, make_lock: Callable[..., Lock]) -> Rendered:
    """The stack that the case stands on."""
    return render_stack(catalog.stacks["cpu"], make_lock(catalog.stacks["cpu"]), images)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An image side with two cases, two stacks, and what Python and editors leave behind."""
    files = {
        "__init__.py": "",
        "rank.py": "rank",
        "telemetry/nvml.py": "nvml",
        "distilbert/case.json": "stale",
        "distilbert/workload.py": "workload",
        "distilbert/tiny/train.tsv": "a\t1",
        "glm/case.json": "{}",
        "glm/workload.py": "glm",
        "stacks/cpu.json": "stale",
        "stacks/other.json": "{}",
        "__pycache__/rank.cpython-311.pyc": "",
        "distilbert/.data.tsv.swp": "",
        ".git/config": "",
    }
    for name, text in files.items():
        path = tmp_path / "flagbench_cases" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "flagbench_cases"


def test_it_carries_the_case_and_no_other(catalog: Catalog, images: Path, heavy: Rendered, package: Path) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    rendered = render_case(case, cpu, heavy, Code(package), images)
    assert list(rendered.files) == [
        "Dockerfile",
        "flagbench_cases/__init__.py",
        "flagbench_cases/distilbert/case.json",
        "flagbench_cases/distilbert/tiny/train.tsv",
        "flagbench_cases/distilbert/workload.py",
        "flagbench_cases/rank.py",
        "flagbench_cases/stacks/cpu.json",
        "flagbench_cases/telemetry/nvml.py",
        "stack.digest",
    ]
    assert rendered.files["flagbench_cases/distilbert/case.json"].decode() == compile_case(case)
    assert json.loads(rendered.files["flagbench_cases/stacks/cpu.json"])["name"] == "cpu"
    assert rendered.dockerfile.count("\nCOPY ") == 1
    assert "\nRUN " not in rendered.dockerfile


def test_its_digest_changes_with_the_code_the_manifest_and_the_stack(
    catalog: Catalog, images: Path, heavy: Rendered, package: Path
) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    digests = [render_case(case, cpu, heavy, Code(package), images).digest]
    other = {**case.raw, "title": "another"}
    digests.append(render_case(replace(case, raw=other), cpu, heavy, Code(package), images).digest)
    changed = replace(heavy, files={**heavy.files, "inputs/README": b"another"})
    digests.append(render_case(case, cpu, changed, Code(package), images).digest)
    (package / "rank.py").write_text("another", encoding="utf-8")
    digests.append(render_case(case, cpu, heavy, Code(package), images).digest)
    assert len(set(digests)) == 4


def test_a_case_without_code_is_refused(catalog: Catalog, images: Path, heavy: Rendered, package: Path) -> None:
    case = replace(catalog.cases["distilbert"], name="bert")
    with pytest.raises(FlagbenchError, match="the case bert has no code"):
        render_case(case, catalog.stacks["cpu"], heavy, Code(package), images)


def test_a_case_cannot_take_the_name_of_the_stacks_images(
    catalog: Catalog, images: Path, heavy: Rendered, package: Path
) -> None:
    case = replace(catalog.cases["distilbert"], name="stack")
    with pytest.raises(FlagbenchError, match="no case can be called 'stack'"):
        render_case(case, catalog.stacks["cpu"], heavy, Code(package), images)


@pytest.mark.parametrize("value", EVIL)
def test_no_name_or_title_adds_an_instruction(
    value: str, catalog: Catalog, images: Path, heavy: Rendered, package: Path
) -> None:
    case, cpu = catalog.cases["distilbert"], catalog.stacks["cpu"]
    plain = render_case(case, cpu, heavy, Code(package), images).dockerfile
    titled = render_case(replace(case, title=value), cpu, heavy, Code(package), images).dockerfile
    assert titled.splitlines()[2:] == plain.splitlines()[2:]
    with pytest.raises(FlagbenchError):
        render_case(replace(case, name=value), cpu, heavy, Code(package), images)
    with pytest.raises(FlagbenchError):
        render_case(case, replace(cpu, name=value), heavy, Code(package), images)
