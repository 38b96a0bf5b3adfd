"""docs/add-a-stack.md, followed literally: a manifest, a block and a lock make a stack, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from flagbench.images.lockfile import read_lock
from flagbench.manifests.load import load_catalog
from packages import Index
from pages import Checkout, assert_page_tells_all, read_page
from running import need


def digests(checkout: Checkout) -> list[str]:
    """Of both tiers of an image that was there before."""
    return [image["digest"] for image in json.loads(checkout.run("flagbench render distilbert:cpu --json"))["images"]]


@pytest.mark.long
def test_the_page_makes_a_stack_and_names_all_changes(tmp_path: Path) -> None:
    need(find_spec("uv") is not None or shutil.which("uv") is not None, "uv (pip install 'flagbench[lock]')")
    page, index = read_page("add-a-stack.md"), Index(tmp_path / "index")
    manifest = yaml.safe_load(dict(page.steps)["manifests/stacks/mini.yaml"])
    pins = (line.split("==") for line in manifest["build"]["packages"])
    # Each asks for another torch than the base's, as packages do.
    hashes = {name: (index.wheel(name, version, ["torch>=99"]),) for name, version in pins}
    own = {
        "UV_DEFAULT_INDEX": index.url,
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    checkout = Checkout(tmp_path, own)
    before, others = checkout.state(), digests(checkout)
    for _ in checkout.follow(page):
        pass

    assert_page_tells_all(page, checkout.changes(before))
    assert page.files == {"manifests/stacks/mini.yaml", "images/templates/stacks/mini.j2"}
    assert digests(checkout) == others, "images of other stacks stay as they are"
    for command in (
        "flagbench manifests compile",
        "python tools/docs.py",
        "flagbench render --all",
        "flagbench lock mini",
    ):
        checkout.run(f"{command} --check")

    lock = read_lock(load_catalog(checkout.root / "manifests").stacks["mini"], checkout.root / "images")
    assert {entry.name: entry.hashes for entry in lock.entries} == hashes, "torch is the base's"

    dockerfile = (checkout.root / "images/rendered/mini/stack/Dockerfile").read_text()
    install, own = dockerfile.index("install.sh apt tini"), dockerfile.index("/etc/ld.so.conf.d/mini.conf")
    assert install < own < dockerfile.index("steps/packages"), "the block stands with the rest of its step"
    assert f"@sha256:{'0' * 64}" in dockerfile

    listed = json.loads(checkout.run("flagbench list stacks --json"))["stacks"]
    assert [set(stack["runs"]) for stack in listed if stack["name"] == "mini"] == [set(load_catalog().cases)]
    job = checkout.run("flagbench job distilbert:mini --for kubernetes --gpus 8 --run-id r1")
    (pod,) = (doc["spec"]["template"]["spec"] for doc in yaml.safe_load_all(job) if doc["kind"] == "Job")
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] in (8, "8")
