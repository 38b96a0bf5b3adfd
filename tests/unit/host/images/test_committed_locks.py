"""The locks in images/locks/: one for each stack, fitting its manifest, with nobody's own addresses in it."""

import re

import pytest

from catalogs import CATALOG
from flagbench.images.lockfile import canonical, lock_path, read_lock
from flagbench.images.render.templates import images_root

IMAGES = images_root(CATALOG)
PUBLIC = ("https://files.pythonhosted.org/",)
SOURCE = re.compile(
    r'(?:base-digest|hash)-source = "(?:https://github\.com/[^"]+/blob/[0-9a-f]{40}/[^"]+|not known)"'
)
"""Who states a digest that no registry or index was asked for: a file at a commit, or nobody known."""

STACKS = pytest.mark.parametrize(
    "stack", [stack for stack in CATALOG.stacks.values() if stack.base], ids=lambda stack: stack.name
)


@STACKS
def test_a_lock_names_no_host_but_pypi_s_and_the_manifests(stack):
    text = SOURCE.sub("", lock_path(stack.name, IMAGES).read_text())
    urls = re.findall(r'[a-z]+://[^\s",]+', text)
    assert [url for url in urls if not url.startswith((*PUBLIC, *stack.build.indexes))] == []
    assert re.findall(r'path = "[^"]*/', text) == [], "nor a folder"


def test_bases_without_a_digest():
    """A base that is not public, and one of whose digest nothing is known; no package is unresolved."""
    locks = [read_lock(stack, IMAGES) for stack in CATALOG.stacks.values() if stack.base]
    assert {lock.stack for lock in locks if lock.base_digest is None} == {"c500-maca2.18", "c500-maca3"}
    assert [lock.stack for lock in locks if lock.unresolved] == []


@STACKS
def test_nothing_of_the_base_is_installed_over(stack):
    lock = read_lock(stack, IMAGES)
    names = {entry.name for entry in (*lock.entries, *lock.unresolved)}
    assert not names & {canonical(name) for name in stack.build.from_base}
    if "torch" in stack.build.from_base:
        assert not {name for name in names if name.startswith(("nvidia-cu", "nvidia-nccl", "triton"))}
