"""The Dockerfile of a stack: what is in it, what is not, and that no value of a manifest can add to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.model import Catalog, Stack
from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock
from flagbench.render.dockerfile import Dockerfile, Instruction
from flagbench.render.model import Rendered
from flagbench.render.stack import render_stack

MakeLock = Callable[..., Lock]
EVIL = [
    "x\nRUN touch /y",
    "x\r\nRUN touch /y",
    "$(touch /y)",
    "`touch /y`",
    "${HOME}",
    "x; touch /y",
    "x && touch /y #",
    'x" y "z',
    "x' y 'z",
    "x \\",
    "{{ 7 * 7 }}{% raw %}",
    "<<EOF",
    "тест\u2028RUN x",
]


def instructions(rendered: Rendered) -> list[Instruction]:
    """Everything but comments."""
    return list(Dockerfile(rendered.dockerfile).instructions)


def set_in_build(field: str) -> Callable[[Stack, str], Stack]:
    """A change of one field of `build`, made of an evil value."""
    values: dict[str, Callable[[str], Any]] = {
        "interpreter": lambda value: f"/opt/{value}",
        "apt": lambda value: (value,),
        "indexes": lambda value: (f"https://host/{value}",),
        "left_out": lambda value: {value: value},
        "env": lambda value: {"A": value},
    }
    return lambda stack, value: replace(stack, build=replace(stack.build, **{field: values[field](value)}))


Change = Callable[[Stack, str], Stack]
# What stands in a Dockerfile as it is, and so has to be plain.
REFUSED: dict[str, Change] = {
    "name": lambda stack, value: replace(stack, name=value),
    "base": lambda stack, value: replace(stack, base_image=value),
    "python": lambda stack, value: replace(stack, python=value),
    "env name": lambda stack, value: replace(stack, build=replace(stack.build, env={value: "1"})),
    **{field: set_in_build(field) for field in ("interpreter", "apt", "indexes")},
}
# What is quoted, or made one line of a comment.
QUOTED: dict[str, Change] = {
    "title": lambda stack, value: replace(stack, title=value),
    "how to obtain the base": lambda stack, value: replace(stack, base_image=None, base_obtain=value),
    **{field: set_in_build(field) for field in ("left_out", "env")},
}
IN_COMMENTS = set(QUOTED) - {"env"}


@pytest.mark.parametrize("value", EVIL)
@pytest.mark.parametrize("field", list(REFUSED))
def test_what_is_not_plain_is_refused(field: str, value: str, full: Stack, images: Path, make_lock: MakeLock) -> None:
    evil = REFUSED[field](full, value)
    with pytest.raises(FlagbenchError) as caught:
        render_stack(evil, replace(make_lock(full), base_image=evil.base_image), images)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in QUOTED for value in EVIL if value.isprintable() or field in IN_COMMENTS],
)
def test_what_is_quoted_adds_no_instruction_and_no_word(
    field: str, value: str, full: Stack, images: Path, make_lock: MakeLock
) -> None:
    plain, evil = (
        render_stack(stack, replace(make_lock(full), base_image=stack.base_image), images)
        for stack in (QUOTED[field](full, "plain"), QUOTED[field](full, value))
    )
    assert words(evil) == words(plain)
    if field in IN_COMMENTS:
        assert [i for i in instructions(evil) if "LOCK_DIGEST" not in i.text] == [
            i for i in instructions(plain) if "LOCK_DIGEST" not in i.text
        ]


def words(image: Rendered) -> list[tuple[str, int]]:
    """Every instruction with the number of words that a shell reads in it."""
    return [(i.name, len(shlex.split(i.text))) for i in instructions(image)]


def test_a_vendors_stack_installs_on_the_bases_python_and_checks_it(
    catalog: Catalog, images: Path, make_lock: MakeLock
) -> None:
    stack = catalog.stacks["c500-maca3"]
    text = render_stack(stack, make_lock(stack), images).dockerfile
    assert "venv" not in text
    assert "steps/torch" not in text, "torch is the base's"
    before, packages, after = (
        text.index(part) for part in ("check_stack.py before", "steps/packages", "stack.py after")
    )
    assert before < packages < after
    assert "sh /media/check_base.sh 3.12 /opt/conda/bin/python3\n" in text
    for package, reason in stack.build.left_out.items():
        assert f"# without {package}: {reason}\n" in text


def test_the_base_is_pinned_unresolved_or_has_to_be_given(
    catalog: Catalog, images: Path, make_lock: MakeLock
) -> None:
    cpu, maca = catalog.stacks["cpu"], catalog.stacks["c500-maca2.18"]
    assert f"ARG BASE=debian:bookworm-slim@{make_lock(cpu).base_digest}\n" in (
        render_stack(cpu, make_lock(cpu), images).dockerfile
    )
    unresolved = render_stack(cpu, make_lock(cpu, digest=None), images).dockerfile
    assert "# unresolved: the digest" in unresolved
    assert "ARG BASE=debian:bookworm-slim\n" in unresolved
    without = render_stack(maca, make_lock(maca, digest=None), images).dockerfile
    assert "ARG BASE\n" in without
    assert "--base" in without


def test_what_is_off_renders_to_nothing(full: Stack, images: Path, make_lock: MakeLock) -> None:
    with_it = render_stack(full, make_lock(full), images)
    plain = replace(full, build=replace(full.build, left_out={}, indexes=(), apt=()))
    without = render_stack(plain, make_lock(plain), images)
    for trace in ("PIP_EXTRA_INDEX_URL", "# without", "libaio-dev"):
        assert trace in with_it.dockerfile
        assert trace not in without.dockerfile
    assert "\n\n\n" not in with_it.dockerfile + without.dockerfile


def test_torch_comes_first_and_what_only_a_case_needs_is_not_there(
    full: Stack, images: Path, make_lock: MakeLock
) -> None:
    files = render_stack(full, make_lock(full, extra=("filelock==3.1", "nvidia-nccl-cu11==2.21.5")), images).files
    pins = {path: _pins(files[path]) for path in files if path.endswith("requirements.lock")}
    assert set(pins) == {"steps/torch/requirements.lock", "steps/packages/requirements.lock"}
    torch, packages = pins["steps/torch/requirements.lock"], pins["steps/packages/requirements.lock"]
    assert torch == {"torch", "numpy", "filelock", "nvidia-nccl-cu11"}
    assert "nvidia-ml-py" in packages
    assert not packages & ({"flash-attn", "deepspeed", "megatron-core"} | torch)


@pytest.mark.parametrize(
    ("interpreter", "headers"),
    [(None, True), ("/usr/bin/python3", True), ("/opt/conda/bin/python3", False)],
    ids=["ours", "the distribution's", "the vendor's own"],
)
def test_every_image_has_a_compiler_and_the_headers_that_its_python_lacks(
    interpreter: str | None, headers: bool, full: Stack, images: Path, make_lock: MakeLock
) -> None:
    """Triton's launcher, torch.compile and DeepSpeed's operators are compiled during a run."""
    stack = replace(full, build=replace(full.build, interpreter=interpreter))
    rendered = render_stack(stack, make_lock(stack), images)
    (apt,) = (i for i in instructions(rendered) if "install.sh apt" in i.text)
    words = shlex.split(apt.text)
    assert "g++" in words
    assert ("python3.10-dev" in words) == headers
    assert json.loads(rendered.files["steps/check/stack.json"])["compiles"] is True


def _pins(requirements: bytes) -> set[str]:
    return {line.partition("==")[0] for line in requirements.decode().splitlines() if "==" in line}


def test_what_is_unresolved_is_installed_without_hashes_and_nothing_else_is(
    full: Stack, images: Path, make_lock: MakeLock
) -> None:
    rendered = render_stack(full, make_lock(full, unresolved=("torch",)), images)
    assert rendered.files["steps/torch/requirements.unlocked"] == b"torch==2.6.0+cu118\n"
    (torch,) = (i for i in instructions(rendered) if "steps/torch" in i.text)
    first, second = torch.text.split("&&")[1:]
    assert "--require-hashes -r /media/requirements.lock" in first
    assert "requirements.unlocked" in second
    assert "--require-hashes" not in second


def test_a_package_to_compile_that_is_not_locked_is_refused(full: Stack, images: Path, make_lock: MakeLock) -> None:
    lock = make_lock(replace(full, build=replace(full.build, compiled=())))
    with pytest.raises(FlagbenchError) as caught:
        render_stack(full, lock, images)
    assert "deepspeed, flash-attn" in str(caught.value)
    assert "flagbench lock a100-cuda11.8" in caught.value.remedy


@pytest.mark.parametrize("name", ["HOME", "PYTHONPATH", "PYTHONHOME", "FLAGBENCH_STACK"])
def test_a_manifest_cannot_set_what_every_image_sets(
    name: str, full: Stack, images: Path, make_lock: MakeLock
) -> None:
    stack = replace(full, build=replace(full.build, env={name: "x"}))
    with pytest.raises(FlagbenchError) as caught:
        render_stack(stack, make_lock(full), images)
    assert name in str(caught.value)


def test_expectations_lie_beside_the_check(catalog: Catalog, images: Path, make_lock: MakeLock) -> None:
    stack = catalog.stacks["a100-cuda11.6"]
    files = render_stack(stack, make_lock(stack), images).files
    assert json.loads(files["steps/check/stack.json"]) == {
        "python": "3.8",
        "expects": {"torch": "1.12.0a0+bd13bc6", "cuda": "11.6"},
        "from_base": ["numpy", "torch", "torchvision"],
        "imports": [],
        "compiles": True,
    }
    cpu = catalog.stacks["cpu"]
    assert json.loads(render_stack(cpu, make_lock(cpu), images).files["steps/check/stack.json"])["imports"] == [
        "torch"
    ]


def test_root_only_where_a_device_demands_it(full: Stack, images: Path, make_lock: MakeLock) -> None:
    rooted = replace(full, docker=replace(full.docker, root=True))
    assert "\nUSER 1000:0\n" in render_stack(full, make_lock(full), images).dockerfile
    assert "\nUSER 0:0\n" in render_stack(rooted, make_lock(full), images).dockerfile


def test_rendering_twice_gives_equal_bytes(full: Stack, images: Path, make_lock: MakeLock) -> None:
    first, second = (render_stack(full, make_lock(full), images) for _ in range(2))
    assert first.files == second.files
    assert list(first.files) == sorted(first.files)
    assert first.digest == second.digest
    other = render_stack(full, make_lock(full, extra=("zstandard==0.23.0",)), images)
    assert other.digest != first.digest
