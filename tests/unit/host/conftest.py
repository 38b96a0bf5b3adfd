"""What the host's tests share: the command line, a store, a valid record to vary, manifests to break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import certifi
import pytest
from hypothesis import settings

from flagbench.accept import certificate
from flagbench.cli import main
from flagbench.machine import devices
from flagbench.machine import pci as machine_pci
from flagbench.manifests import load
from flagbench.manifests.documents import Document
from flagbench.manifests.model import CaseManifest
from flagbench.records import bundle_documents
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import Store

# A busy machine makes no example fail.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "manifests"

Flagbench = Callable[..., Any]
MakeRecord = Callable[..., bytes]
Edit = Callable[[Path, str, str], None]
Pci = Callable[..., None]
"""What the fixtures `flagbench`, `make_record`, `edit` and `pci` are."""

RECORD: dict[str, Any] = {
    "schema": "record/v1",
    "record_id": "20260101T120000Z-0001",
    "run_id": "run-1",
    "created_at": "2026-01-01T12:00:00Z",
    "flagbench": {"version": "0.1.0", "commit": None},
    "case": "distilbert",
    "stack": "cpu",
    "preset": "tiny",
    "division": "faithful",
    "config": None,
    "config_digest": None,
    "conditions": {"devices": 1, "recompute": False, "driver": None},
    "system": {"nodes": 1, "devices_per_node": 1, "devices": [{"index": 0, "name": "a processor"}]},
    "software": {"python": "3.11", "torch": "2.13.0"},
    "timing": {"e2e": 12.5},
    "metrics": [
        {
            "name": "p_core",
            "value": 321.5,
            "unit": "samples/s",
            "scope": "job",
            "n": 50,
            "ci95": [318.0, 325.0],
            "ci_method": "block bootstrap, within-run",
        }
    ],
    "flops": None,
    "work": None,
    "quality": {"checks": [{"name": "loss_finite", "ok": True, "detail": "200 of 200 steps"}]},
    "telemetry": None,
    "ranks": [],
    "status": {"state": "ok", "phase": "done", "reason": None, "exit_code": 0},
}
REPLAY = Path(__file__).parent / "verdict" / "replays" / "a100-1x8.json"
_REPLAYED = json.loads(REPLAY.read_bytes())
FULL_RECORD: dict[str, Any] = {
    **_REPLAYED,
    "quality": {**_REPLAYED["quality"], "losses": {"first_step": 0, "steps": 3, "values": [2.5, None, 1]}},
    "ranks": [{**rank, "bubble": 0.25} for rank in _REPLAYED["ranks"]],
    "telemetry": {"devices": [{"throttle_seconds": {"power": 1.5}, "foreign_processes": 0}]},
    "argv": ["--nodes", "1"],
    "launch": {"started_at": "2026-01-01T11:53:00Z", "seconds": 421.5, "via": "native"},
    "layout": {"dp": 8, "tp": 1, "pp": 1},
}
"""A record that has every part."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document; of a list only the first three entries."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of this Python, ended."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def pci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pci:
    """`pci("0000:ba:00.0")` adds an H100 to what sysfs shows of this machine, at first nothing; no container limits
    what a vendor's tool shows."""
    root = tmp_path / "pci"
    monkeypatch.setattr(devices, "PCI_DEVICES", root)
    monkeypatch.setattr(machine_pci, "CONTAINER_MARKS", ())
    for name in machine_pci.PART_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def add(*addresses: str, vendor: str = "0x10de", kind: str = "0x030200", driver: str | None = "nvidia") -> None:
        for address in addresses:
            device = root / address
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{vendor}\n")
            (device / "class").write_text(f"{kind}\n")
            if driver is not None:
                (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
                (device / "driver").symlink_to(tmp_path / "drivers" / driver)

    return add


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """flagbench's own manifests are read and checked once for all commands that tests run here: 0.1 s of CPU each.
    Installed packages are listed once."""
    read, once = load._read_folder, cache(load._read_folder)
    check, packages = load.check_manifests, cache(bundle_documents.packages)
    checked: list[list[Path]] = []

    def read_folder(root: Path, name: str, model: type, stem: str | None = None) -> list[Document]:
        return (once if root == MANIFESTS else read)(root, name, model, stem)

    def check_manifests(cases: list[Document], *others: Any) -> None:
        claims = [document.path for document in others[2]]
        if cases is not once(MANIFESTS, "cases", CaseManifest):
            check(cases, *others)
        elif claims not in checked:
            check(cases, *others)
            checked.append(claims)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_read_folder", read_folder)
        patch.setattr(load, "check_manifests", check_manifests)
        for module in (bundle_documents, certificate):
            patch.setattr(module, "packages", packages)
        yield


@pytest.fixture
def make_record() -> MakeRecord:
    """Builds a valid record's bytes with some fields replaced."""

    def make(**changes: Any) -> bytes:
        return json.dumps({**RECORD, **changes}).encode()

    return make


class Ended(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The answer of a command with --json."""
        assert self.code == 0, self
        return json.loads(self.out)


@pytest.fixture
def flagbench(capsys: pytest.CaptureFixture[str]) -> Flagbench:
    """`flagbench(words, *more)` runs the command line in this process; `words` is split at spaces."""

    def run(words: str, *more: str) -> Ended:
        code = main.run([*words.split(), *more])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that commands find in the environment; it is empty."""
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    return Store(FolderBlobs(tmp_path / "store"))


@pytest.fixture
def ca_bundle(tmp_path: Path) -> Path:
    """A bundle of one certificate."""
    path = tmp_path / "ca.crt"
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    path.write_text(first + end, encoding="utf-8")
    return path


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A copy of the manifests in a folder of the same name."""
    return Path(shutil.copytree(MANIFESTS, tmp_path / "manifests", copy_function=shutil.copyfile))


CITED = (
    "11,llama3-8b,lora,bf16,DGX-H100,h100-sxm,1,1,MBS 2 / GBS 32,4096,GA=16,main branch,"
    "tokens_per_second_per_device,12472.87,tokens/s,,a table,\n"
)


@pytest.fixture
def only_cited(manifests: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Manifests that commands read, without a claim of llama3.1-8b-lora: its published row is in the catalogue."""
    (manifests / "claims" / "llama3.1-8b-lora.yaml").unlink()
    with (manifests / "catalogue" / "automodel.csv").open("a", encoding="utf-8") as catalogue:
        catalogue.write(CITED)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    return manifests


@pytest.fixture
def edit() -> Edit:
    """Replaces a piece of a file that must be in it, the first time it occurs."""

    def replace(path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return replace
