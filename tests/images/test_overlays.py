"""The test-only stacks are the real ones, but for what tests/standins/overlays.py says; no engine is needed."""

import re

import pytest

from flagbench.images.lockfile import read_lock
from flagbench.images.render.image import ImageRenderer
from flagbench.manifests.load import load_catalog
from standins.overlays import CHANGES, PREFIX, ROOT, make_catalog

# What decides a wheel, as its hash: other packages are around it in an overlay's lock.
KEY = re.compile(r"(?<= )[a-z0-9-]+-[0-9a-f]{12} (?=/opt/flagbench/wheels)")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return load_catalog(make_catalog(tmp_path_factory.mktemp("overlays")))


@pytest.fixture(scope="module")
def renderer(catalog):
    return ImageRenderer(catalog)


def test_every_stack_of_a_vendor_has_an_overlay(catalog):
    real = {name for name in catalog.stacks if not name.startswith(PREFIX)}
    real = {name for name in real if catalog.stacks[name].base}
    assert set(CHANGES) == real - {"cpu"}, "add the new stack to tests/standins/overlays.py"


@pytest.mark.parametrize("stack", CHANGES)
def test_an_overlay_changes_only_values_of_the_dockerfile(stack, catalog, renderer):
    heavy = renderer.render_stack(catalog.stacks[PREFIX + stack])
    made = {"stack": heavy}
    # One case that needs nothing but the stack, and one that compiles.
    for case in {"distilbert", "llama2-7b-lora"} & set(catalog.stacks[stack].runs):
        made[case] = renderer.render_case(catalog.cases[case], catalog.stacks[PREFIX + stack], heavy)
    for folder, overlay in made.items():
        committed = (ROOT / "images" / "rendered" / stack / folder / "Dockerfile").read_text(encoding="utf-8")
        expected = with_values(committed, stack, catalog)
        assert KEY.sub("KEY ", overlay.dockerfile) == KEY.sub("KEY ", expected)


def with_values(dockerfile, stack, catalog):
    """The Dockerfile of a real stack with the values that its overlay has of its own."""
    change, real, overlay = CHANGES[stack], catalog.stacks[stack], catalog.stacks[PREFIX + stack]
    images = catalog.root.parent / "images"
    digests = [read_lock(each, images).digest for each in (real, overlay)]
    values = [digests, [real.python, overlay.python]]
    values += zip(real.build.indexes, change.indexes)
    for old, new in values:
        dockerfile = dockerfile.replace(old, new)
    # The name, where it is not a part of the base's.
    return re.sub(r"(?<![\w.-])%s(?![\w.-])" % re.escape(stack), PREFIX + stack, dockerfile)


@pytest.mark.parametrize("stack", CHANGES)
def test_the_lock_of_an_overlay_fits(stack, catalog):
    lock = read_lock(catalog.stacks[PREFIX + stack], catalog.root.parent / "images")
    assert not lock.unresolved, "run `python -m standins.overlays lock` in tests/"
