"""Every stack that runs a case holds what the case imports; what is left out of a stack, no case of its needs."""

from __future__ import annotations

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Stack
from flagbench.locks.model import canonical

CATALOG = load_catalog()
# Sources that only `prepare` reads, and what every case imports.
PREPARE = ("h5py", "sentencepiece")
COMMON = ("torch", "numpy", "psutil", "safetensors", "tokenizers")


@pytest.fixture(params=CATALOG.stacks.values(), ids=lambda stack: stack.name)
def stack(request: pytest.FixtureRequest) -> Stack:
    found = request.param
    assert isinstance(found, Stack)
    return found


def held(stack: Stack) -> set[str]:
    """Packages that an image of the stack has by its manifest: installed, compiled, or the base's."""
    build = stack.build
    for_cases = [*(line.split("==")[0] for line in build.optional), *(each.name for each in build.compiled)]
    names = [*(line.split("==")[0] for line in build.packages), *for_cases]
    return {canonical(name) for name in (*names, *build.from_base)}


def test_it_holds_what_its_cases_import(stack: Stack) -> None:
    for case in stack.runs:
        wanted = {canonical(module) for module in (*COMMON, *PREPARE, *CATALOG.cases[case].raw.get("imports", ()))}
        assert wanted <= held(stack), f"{stack.name} runs {case}"


def test_nothing_that_is_left_out_is_there_by_another_way(stack: Stack) -> None:
    """But for what the base may bring, which is then kept."""
    installed = held(stack) - {canonical(name) for name in stack.build.from_base}
    assert not installed & {canonical(name) for name in stack.build.left_out}


def test_it_says_which_torch_it_has(stack: Stack) -> None:
    """What an image compares with itself when it starts; CUDA's version too, where torch was built with CUDA."""
    assert "torch" in stack.expects
    assert ("cuda" in stack.expects) == (stack.vendor == "nvidia")
    assert all(stack.expects.values())
