"""The locks in images/locks/: one for each stack, fitting its manifest, with nobody's addresses in it."""

import re

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.locks.files import lock_path, read_lock
from flagbench.locks.metadata import read_tables
from flagbench.locks.model import canonical
from flagbench.locks.pylock import dump_pylock
from flagbench.render.roots import images_root

CATALOG = load_catalog()
IMAGES = images_root(CATALOG)


@pytest.fixture(params=CATALOG.stacks.values(), ids=lambda stack: stack.name)
def stack(request):
    return request.param


def test_it_fits_its_manifest_and_is_as_it_would_be_written(stack):
    assert dump_pylock(read_lock(stack, IMAGES)) == lock_path(stack.name, IMAGES).read_text()


def test_every_direct_requirement_is_there_at_its_version(stack):
    lock = read_lock(stack, IMAGES)
    pins = {entry.pin for entry in (*lock.entries, *lock.unresolved)}
    wanted = [*stack.build.packages, *(f"{package.name}=={package.version}" for package in stack.build.compiled)]
    assert {f"{canonical(name)}=={version}" for name, version in (pin.split("==") for pin in wanted)} <= pins


def test_nothing_of_the_base_is_installed_over(stack):
    lock = read_lock(stack, IMAGES)
    names = {entry.name for entry in (*lock.entries, *lock.unresolved)}
    assert not names & {canonical(name) for name in stack.build.from_base}


def test_it_names_no_host_but_the_manifests(stack):
    text = lock_path(stack.name, IMAGES).read_text()
    allowed = {*stack.build.indexes}
    assert {url.rstrip(",;)") for url in re.findall(r"[a-z]+://\S+", text)} <= allowed


def test_what_is_compiled_has_declared_requirements(stack):
    tables = read_tables(IMAGES)
    for package in stack.build.compiled:
        assert tables[(canonical(package.name), package.version)]


def test_no_second_torch_comes_in(stack):
    """A package that would pull the CUDA libraries of another torch is not in a lock on a vendor's base."""
    names = {entry.name for entry in read_lock(stack, IMAGES).entries}
    if "torch" in stack.build.from_base:
        assert not {name for name in names if name.startswith(("nvidia-cu", "nvidia-nccl", "triton"))}
