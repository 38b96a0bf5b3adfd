"""The Dockerfile of a stack: what is in it, and what is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.render.image import ImageRenderer
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack

from .conftest import Render, in_build, instructions, lock_of


def test_what_is_rendered_names_no_host_but_the_manifests(catalog: Catalog) -> None:
    indexes = {index for stack in catalog.stacks.values() for index in stack.build.indexes}
    for rendered in ImageRenderer(catalog).render_matrix():
        assert set(re.findall(r"[a-z]+://[^\s'\"]+", rendered.dockerfile)) <= indexes


def test_the_base_is_pinned_unresolved_or_has_to_be_given(catalog: Catalog, stack_image: Render) -> None:
    cpu, maca = catalog.stacks["cpu"], catalog.stacks["c500-maca2.18"]
    pinned, unresolved, none = stack_image(cpu), stack_image(cpu, digest=None), stack_image(maca, digest=None)
    assert f"ARG BASE=debian:bookworm-slim@sha256:{'d' * 64}\n" in pinned.dockerfile
    assert "# unresolved: the digest" in unresolved.dockerfile
    assert "ARG BASE=debian:bookworm-slim\n" in unresolved.dockerfile
    assert "ARG BASE\n" in none.dockerfile
    assert "--base" in none.dockerfile


def test_a_toolkit_is_copied_from_its_own_image(full: Stack, stack_image: Render) -> None:
    toolkit = full.build.toolkit
    assert toolkit is not None
    copied = stack_image(full)
    assert f"\nARG TOOLKIT={toolkit.image}\n" in copied.dockerfile
    assert [i.words[1:] for i in instructions(copied, "FROM")] == [["${TOOLKIT}", "AS", "toolkit"], ["${BASE}"]]
    (run,) = (i.words for i in instructions(copied, "RUN") if "from=toolkit" in i.text)
    assert {"bin/nvcc", "nvvm/bin", "targets/x86_64-linux/include"} <= {*run[run.index("--parents") :]}
    assert "TOOLKIT" not in stack_image(in_build(full, toolkit=None)).dockerfile


def test_torch_comes_first_and_no_package_of_cases(full: Stack, stack_image: Render) -> None:
    files = stack_image(full, extra=("filelock==3.1", "nvidia-nccl-cu11==2.21.5")).files
    assert {path for path in files if path.endswith("requirements.lock")} == {
        "steps/torch/requirements.lock",
        "steps/packages/requirements.lock",
    }
    torch, packages = (
        set(re.findall("^(.+)==", files[f"steps/{step}/requirements.lock"].decode(), re.MULTILINE))
        for step in ("torch", "packages")
    )
    assert torch == {"torch", "numpy", "filelock", "nvidia-nccl-cu11"}
    assert "nvidia-ml-py" in packages
    assert not packages & ({"flash-attn", "deepspeed", "megatron-core"} | torch)


def test_only_unresolved_packages_are_installed_unhashed(full: Stack, stack_image: Render) -> None:
    rendered = stack_image(full, unresolved=("torch",))
    assert rendered.files["steps/torch/requirements.unlocked"] == b"torch==2.6.0+cu118\n"
    (torch,) = (i for i in instructions(rendered) if "steps/torch" in i.text)
    first, second = torch.text.split("&&")[1:]
    assert "--require-hashes -r /media/requirements.lock" in first
    assert "requirements.unlocked" in second
    assert "--require-hashes" not in second


def test_a_package_to_compile_that_is_not_locked_is_refused(full: Stack, templates: Templates) -> None:
    with pytest.raises(FlagbenchError) as caught:
        render_stack(full, lock_of(in_build(full, compiled=())), templates)
    assert "deepspeed, flash-attn" in str(caught.value)
    assert "flagbench lock a100-cuda11.8" in caught.value.remedy


def test_expectations_are_beside_the_check(catalog: Catalog, stack_image: Render) -> None:
    expected = {
        name: json.loads(stack_image(catalog.stacks[name]).files["steps/check/stack.json"])
        for name in ("a100-cuda11.6", "cpu")
    }
    assert expected["a100-cuda11.6"] == {
        "python": "3.8",
        "expects": {"torch": "1.12.0a0+bd13bc6", "cuda": "11.6"},
        "from_base": ["numpy", "torch", "torchvision"],
        "imports": [],
        "compiles": True,
        "libraries": ["libibverbs.so.1", "librdmacm.so.1"],
    }
    assert (expected["cpu"]["imports"], expected["cpu"]["libraries"]) == (["torch"], [])


def test_root_only_where_a_device_demands_it(full: Stack, stack_image: Render) -> None:
    rooted = replace(full, docker=replace(full.docker, root=True))
    assert "\nUSER 1000:0\n" in stack_image(full).dockerfile
    assert "\nUSER 0:0\n" in stack_image(rooted).dockerfile
