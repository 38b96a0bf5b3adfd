"""Test-only stacks made from the real ones: the same image on a stand-in base, run on the processor.

An overlay of the stack S is called standin-S, so that no tag of a real image is ever moved. `CHANGES` says all that
it has of its own; everything else, the packages to install among it, is read from the real manifest.

    python -m standins.overlays lock         (in tests/) makes the locks that overlays have of their own, in locks/
    python -m standins.overlays wheels DIR   fetches the packages of every overlay into a wheelhouse
"""

import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from flagbench.errors import ExitCode
from flagbench.locks.files import load_lock, lock_path, write_lock

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
        base="debian", torch="2.13", python="3.11", packages={"torch==2.6.0+cu118": TORCH}, indexes=(TORCH_INDEX,)
    ),
    # Two copies of Python and torch are enough: newer bases bring Python 3.12, their stand-ins Debian's 3.11.
    "c500-maca2.18": Change(base="python38", torch="1.12.1"),
    "c500-maca3": Change(base="conda", torch="2.13", python="3.11"),
    "hopper-cuda13": Change(base="hopper", torch="2.13", python="3.11"),
}


def overlay(real: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The manifest of an overlay."""
    made = copy.deepcopy(dict(real))
    made["name"] = PREFIX + real["name"]
    made["aliases"] = []
    made["expects"] = {"torch": change.torch}
    made["device"] = dict(PROCESSOR)
    made["monitor"] = "cpu"
    made["docker"].update(gpus=None, devices=[], groups=[], multi_node={"devices": [], "capabilities": []})
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
    locks = Path(shutil.copytree(ROOT / "images" / "locks", folder / "images" / "locks"))
    for stack, change in CHANGES.items():
        made = overlay(real_manifest(stack), change)
        write_manifest(manifests, made)
        own = LOCKS / lock_path(made["name"], folder).name
        if not change.own_lock:
            lock = load_lock(stack, folder / "images")
            assert lock is not None
            write_lock(replace(lock, stack=made["name"]), folder / "images")
        elif own.is_file():
            shutil.copy(own, locks)
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
    names = [PREFIX + stack for stack, change in CHANGES.items() if change.own_lock]
    with tempfile.TemporaryDirectory() as scratch:
        # The bases of overlays are in no registry: they stay unresolved.
        flagbench(make_catalog(Path(scratch)), "lock", *names, allowed=(0, ExitCode.ENGINE))
        LOCKS.mkdir(exist_ok=True)
        for name in names:
            shutil.copy(lock_path(name, Path(scratch, "images")), LOCKS)


def fill_wheelhouse(folder: Path) -> None:
    """Fetch the packages of every overlay; what is there already is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        manifests = make_catalog(Path(scratch))
        for stack in CHANGES:
            flagbench(manifests, "wheels", PREFIX + stack, "--out", str(folder))


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock_overlays()
    elif sys.argv[1:2] == ["wheels"] and len(sys.argv) == 3:
        fill_wheelhouse(Path(sys.argv[2]).absolute())
    else:
        sys.exit("usage: python -m standins.overlays lock | wheels DIR")
