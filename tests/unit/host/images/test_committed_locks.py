"""The locks in images/locks/: one for each stack, fitting its manifest, with nobody's own addresses in it."""

import re

import msgspec.toml
import pytest

from catalogs import CATALOG
from flagbench.images.lockfile import canonical, lock_path, read_lock
from flagbench.images.render.templates import images_root

IMAGES = images_root(CATALOG)
PUBLIC = ("https://files.pythonhosted.org/",)


@pytest.fixture(params=CATALOG.stacks.values(), ids=lambda stack: stack.name)
def stack(request):
    return request.param


@pytest.fixture
def lock(stack):
    return read_lock(stack, IMAGES)


@pytest.fixture
def names(lock):
    return {entry.name for entry in (*lock.entries, *lock.unresolved)}


def test_it_names_no_host_but_pypis_and_the_manifests(stack):
    text = lock_path(stack.name, IMAGES).read_text()
    urls = re.findall(r'[a-z]+://[^\s",]+', text)
    assert [url for url in urls if not url.startswith((*PUBLIC, *stack.build.indexes))] == []
    assert re.findall(r'path = "[^"]*/', text) == [], "nor a folder"


def test_every_direct_requirement_is_there_at_its_version(stack, lock):
    pins = {entry.pin for entry in (*lock.entries, *lock.unresolved)}
    wanted = [*stack.build.packages, *(f"{package.name}=={package.version}" for package in stack.build.compiled)]
    assert {f"{canonical(name)}=={version}" for name, version in (pin.split("==") for pin in wanted)} <= pins


def test_nothing_of_the_base_is_installed_over(stack, names):
    assert not names & {canonical(name) for name in stack.build.from_base}
    if "torch" in stack.build.from_base:
        assert not {name for name in names if name.startswith(("nvidia-cu", "nvidia-nccl", "triton"))}


def test_what_is_compiled_has_declared_requirements(stack):
    declared = msgspec.toml.decode((IMAGES / "locks" / "uv.toml").read_bytes())["dependency-metadata"]
    pins = {(canonical(table["name"]), table["version"]) for table in declared}
    assert {(canonical(package.name), package.version) for package in stack.build.compiled} <= pins
