"""Test-only stacks made from the real ones: the same image on a stand-in base, run on the processor.

An overlay of the stack S is called standin-S, so that no tag of a real image is ever moved. `CHANGES` says all that
it has of its own; everything else, the packages to install among it, is read from the real manifest.

    python -m standins.overlays lock         (in tests/) makes the locks that overlays have of their own, in locks/
    python -m standins.overlays wheels DIR   fetches the packages of `cpu` and of every overlay into a wheelhouse
"""

import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from flagbench.images.lockfile import canonical, lock_path, read_lock, requirements_file, write_lock
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.stack import Stack
from flagbench_core.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).parent / "locks"
PREFIX = "standin-"

PROCESSOR = {"kind": "cpu", "visibility_variable": None, "driver_floor": None, "backend": "gloo"}
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Change:
    """What an overlay has of its own, besides that it runs on the processor."""

    base: str
    """The stand-in, of `standins.bases`; `debian` is the bare distribution."""
    torch: str
    """What the manifest expects of torch, and of nothing else."""
    python: str | None = None
    """None: the real stack's, whose lock is used as it is."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Packages that are exchanged: line of the real manifest to the overlay's."""
    indexes: tuple[str, ...] = ()

    @property
    def own_lock(self) -> bool:
        """Whether other packages are installed than in the real stack."""
        return self.python is not None


CHANGES = {
    "a100-cuda11.6": Change(base="cuda", torch="1.12.1"),
    # Debian's Python stands for Ubuntu's 3.10, a torch for processors for the one for CUDA 11.8.
    "a100-cuda11.8": Change(
        base="toolkit", torch="2.13", python="3.11", packages={"torch==2.6.0+cu118": TORCH}, indexes=(TORCH_INDEX,)
    ),
    # Two copies of Python and torch are enough: newer bases bring Python 3.12, their stand-ins Debian's 3.11.
    "c500-maca2.18": Change(base="python38", torch="1.12.1"),
    "c500-maca3": Change(base="conda", torch="2.13", python="3.11"),
    "cuda13": Change(base="hopper", torch="2.13", python="3.11"),
    "vllm-cuda13": Change(base="vllm", torch="2.13", python="3.11"),
}


def overlay(real: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The manifest of an overlay."""
    made = copy.deepcopy(dict(real))
    made["name"] = PREFIX + real["name"]
    made["aliases"] = []
    made["expects"] = {"torch": change.torch}
    made["device"] = dict(PROCESSOR)
    made["monitor"] = "cpu"
    made["docker"].update(gpus=None, devices=[], groups=[])
    if change.python is not None:
        made["python"] = change.python
    unknown = set(change.packages) - set(real["build"]["packages"])
    assert not unknown, f"{real['name']} has no {unknown}"
    made["build"]["packages"] = [change.packages.get(line, line) for line in real["build"]["packages"]]
    made["build"]["indexes"] = list(change.indexes) or real["build"]["indexes"]
    return made


def real_manifest(stack: str) -> dict[str, Any]:
    """The manifest of a real stack, as data."""
    loaded = yaml.safe_load((ROOT / "manifests" / "stacks" / f"{stack}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def make_catalog(folder: Path) -> Path:
    """A checkout's manifests/ and images/ under `folder`, with the overlays in it; returns the manifests' path.

    The image side's code and the templates are the real ones, which flagbench finds where there are none beside.
    """
    manifests = Path(shutil.copytree(ROOT / "manifests", folder / "manifests"))
    shutil.copytree(ROOT / "images" / "locks", folder / "images" / "locks")
    for stack, change in CHANGES.items():
        made = overlay(real_manifest(stack), change)
        write_manifest(manifests, made)
        locked = lock_path(made["name"], folder / "images")
        source = LOCKS / locked.name if change.own_lock else lock_path(stack, folder / "images")
        if source.is_file():
            shutil.copy(source, locked)
    for case in sorted((manifests / "cases").glob("*.yaml")):
        exclude_overlays(case)
    return manifests


def exclude_overlays(path: Path) -> None:
    """A case that does not run on a real stack does not run on its overlay, and has none of its packages there."""
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    why = case["does_not_run"]
    excluded = {PREFIX + stack: why[stack] for stack in CHANGES if stack in why}
    if excluded:
        case["does_not_run"] = {**why, **excluded}
        path.write_text(yaml.safe_dump(case, sort_keys=False, allow_unicode=True), encoding="utf-8")


def write_manifest(manifests: Path, stack: Mapping[str, Any]) -> None:
    """Write the manifest of a stack, new or changed."""
    text = yaml.safe_dump(dict(stack), sort_keys=False, allow_unicode=True)
    (manifests / "stacks" / f"{stack['name']}.yaml").write_text(text, encoding="utf-8")


def flagbench(manifests: Path, *arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run a command of flagbench on a catalog; its errors are shown and end this process."""
    environment = dict(os.environ, FLAGBENCH_MANIFESTS=str(manifests))
    done = subprocess.run([sys.executable, "-m", "flagbench", *arguments], env=environment, check=False)
    if done.returncode not in allowed:
        sys.exit(done.returncode)


def lock_overlays() -> None:
    """Make every lock in locks/, from the indexes that this machine is configured with."""
    stacks = [stack for stack, change in CHANGES.items() if change.own_lock]
    with tempfile.TemporaryDirectory() as scratch:
        manifests, images = make_catalog(Path(scratch)), Path(scratch, "images")
        flagbench(manifests, "lock", *(PREFIX + stack for stack in stacks), allowed=(0, ExitCode.ENGINE))
        catalog = load_catalog_without_claims(manifests)
        LOCKS.mkdir(exist_ok=True)
        for stack in stacks:
            real = read_lock(catalog.stacks[stack], images)
            lock = read_lock(catalog.stacks[PREFIX + stack], images)
            base = {name: getattr(real, name) for name in ("base_digest", "base_digest_of", "base_digest_source")}
            write_lock(replace(lock, **base), images)
            shutil.copy(lock_path(lock.stack, images), LOCKS)


def fill_wheelhouse(folder: Path) -> None:
    """Fetch the packages of `cpu` and of every overlay, as docs/build-images.md says; existing files are kept."""
    with tempfile.TemporaryDirectory() as scratch:
        catalog = load_catalog_without_claims(make_catalog(Path(scratch)))
        requirements = Path(scratch, "requirements.txt")
        for name in ("cpu", *(PREFIX + stack for stack in CHANGES)):
            stack = catalog.stacks[name]
            lock = read_lock(stack, Path(scratch, "images"))
            requirements.write_text(requirements_file(stack, lock), encoding="utf-8")
            download(folder, stack, stack.python, "--require-hashes", "-r", str(requirements))
            for package in stack.build.other_python:
                download(folder, stack, package.python, f"{package.name}=={package.version}")
            compiled = {canonical(package.name) for package in stack.build.compiled}
            for entry in lock.entries:
                if entry.name in compiled:
                    fetch_source(folder, entry.table)


def download(folder: Path, stack: Stack, python: str, *packages: str) -> None:
    """Wheels for a Python, from where pip looks by itself; where that is not enough, from the stack's indexes too."""
    tags = [f"manylinux_2_{minor}" for minor in range(35, 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    command += [f"--python-version={python}", *(f"--platform={tag}_x86_64" for tag in tags), *packages]
    indexes = [f"--extra-index-url={url}" for url in stack.build.indexes]
    if not indexes or subprocess.run(command, check=False).returncode != 0:
        subprocess.run([*command, *indexes], check=True)


def fetch_source(folder: Path, table: str) -> None:
    """The file of a package to compile: pip would run its setup.py, which needs a torch."""
    found = re.search(r'"(https://[^"]*/([^"/]+))"', table)
    assert found, table
    if not (folder / found[2]).exists():
        urllib.request.urlretrieve(found[1], folder / found[2])


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock_overlays()
    elif sys.argv[1:2] == ["wheels"] and len(sys.argv) == 3:
        fill_wheelhouse(Path(sys.argv[2]).absolute())
    else:
        sys.exit("usage: python -m standins.overlays lock | wheels DIR")
