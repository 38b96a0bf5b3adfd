"""The test-only stacks are the real ones, but for what tests/standins/overlays.py says; no engine is needed."""

import re
from pathlib import Path

import pytest

from flagbench.images.lockfile import read_lock
from flagbench.images.render.image import ImageRenderer
from flagbench.manifests.load import load_catalog
from standins.overlays import CHANGES, PREFIX, ROOT, make_catalog, real_manifest

METADATA = Path(__file__).parents[1] / "standins" / "metadata.j2"
# What the lock of an overlay knows, the real one may have to leave open.
UNLOCKED = re.compile(r" && \\\n    sh /media/install\.sh pip \S+ install --no-deps -r /media/requirements\.unlocked")
# What decides a wheel, as its hash: other packages are around it in an overlay's lock.
KEY = re.compile(r"(?<= )[a-z0-9-]+-[0-9a-f]{12} (?=/opt/flagbench/wheels)")
RUN = re.compile(r"(?ms)^RUN (?:[^\n]*\\\n)*[^\n]*\n")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return load_catalog(make_catalog(tmp_path_factory.mktemp("overlays")))


@pytest.fixture(scope="module")
def renderer(catalog):
    return ImageRenderer(catalog)


def test_every_stack_of_a_vendor_has_an_overlay(catalog):
    real = {name for name in catalog.stacks if not name.startswith(PREFIX)}
    assert set(CHANGES) == real - {"cpu"}, "add the new stack to tests/standins/overlays.py"


@pytest.mark.parametrize("stack", CHANGES)
def test_an_overlay_changes_only_values_of_the_dockerfile(stack, catalog, renderer):
    heavy = renderer.stack(catalog.stacks[PREFIX + stack])
    made = {"stack": heavy}
    for case in ("distilbert", "llama2-7b-lora"):
        made[case] = renderer.case(catalog.cases[case], catalog.stacks[PREFIX + stack], heavy)
    for folder, overlay in made.items():
        committed = (ROOT / "images" / "rendered" / stack / folder / "Dockerfile").read_text(encoding="utf-8")
        expected = UNLOCKED.sub("", with_values(committed, stack, catalog))
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


def test_metadata_is_asked_for_where_packages_are_compiled(renderer, catalog):
    """The template exchanges what is run there, and keeps every stage."""
    asking = ImageRenderer(catalog, METADATA)
    for name in CHANGES:
        stack, case = catalog.stacks[PREFIX + name], catalog.cases["llama2-7b-lora"]
        heavy = renderer.stack(stack)
        ours, real = (each.case(case, stack, heavy).dockerfile for each in (asking, renderer))
        stages = [re.findall(r"(?m)^FROM .*AS (\S+)$", text) for text in (ours, real)]
        assert stages[0] == stages[1]
        assert ("wheel-deepspeed" in stages[0]) == bool(stack.build.compiled)
        for before, after in zip(RUN.findall(real), RUN.findall(ours)):
            assert before.splitlines()[0] == after.splitlines()[0], "the mounts are the same"


@pytest.mark.parametrize("stack", CHANGES)
def test_an_overlay_installs_what_the_real_stack_does(stack, catalog):
    """But for torch, where the overlay has one for processors; its lock fits, or says which command mends it."""
    change, real, overlay = CHANGES[stack], catalog.stacks[stack], catalog.stacks[PREFIX + stack]
    packages = [change.packages.get(line, line) for line in real_manifest(stack)["build"]["packages"]]
    assert list(overlay.build.packages) == packages
    assert overlay.build.compiled == real.build.compiled
    assert overlay.build.from_base == real.build.from_base
    assert overlay.build.interpreter == real.build.interpreter
    lock = read_lock(overlay, catalog.root.parent / "images")
    assert not lock.unresolved, "run `python -m standins.overlays lock` in tests/"
