"""Loads the folder manifests/ as a Catalog: cases, devices, stacks, claims and limits, checked and typed.

Every command starts with `load_catalog`. If there are problems, it reports those of all files at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from flagbench.errors import FlagbenchError
from flagbench.manifests.checks import check_manifests
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.documents import Document, ManifestError, Problem, read_document
from flagbench.manifests.limits import AcceptanceLimit, FleetLimits, LimitsManifest
from flagbench.manifests.model import Case, CaseManifest, Catalog
from flagbench.manifests.rows import CATALOGUE, CatalogueCases, Claim, ClaimsManifest, Raw, build_claim
from flagbench.manifests.stack import Stack, StackManifest
from flagbench.schema import shipped_manifests
from flagbench.system.files import expanded

_MANIFESTS_VARIABLE = "FLAGBENCH_MANIFESTS"
"""The environment variable that names another folder of manifests."""
LIMITS_FILE = "limits.yaml"
"""The file with the limits of an acceptance."""


class _UnreadClaims(Mapping[str, Claim]):
    """Replaces the claims of a catalog that was loaded without them: to read it is a programming error."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("the catalog was loaded without claims")

    __getitem__ = __iter__ = __len__ = _refuse


def manifests_root(root: Path | None = None) -> Path:
    """Find the folder of manifests: `root`, else FLAGBENCH_MANIFESTS, else flagbench's own.

    Raises FlagbenchError (USAGE) if that is not a folder of manifests.
    """
    folder = root
    origin = "given was"
    if folder is None:
        variable = os.environ.get(_MANIFESTS_VARIABLE, "")
        if not variable:
            return shipped_manifests()
        folder = expanded(variable)
        origin = f"{_MANIFESTS_VARIABLE} names"
    if not (folder / "cases").is_dir():
        raise FlagbenchError(
            f"no manifests at {folder}: there is no cases/ in it ({origin} this folder)",
            remedy=f"name a folder with cases/, devices/, stacks/ and claims/, or unset {_MANIFESTS_VARIABLE}",
        )
    return folder.resolve()


def load_catalog(root: Path | None = None, *, claims_of: str | None = None) -> Catalog:
    """Load the manifests in `root`, else in FLAGBENCH_MANIFESTS, else flagbench's own.

    Args:
        claims_of: the name of a case, to read only its claims, which is faster; None: read those of all cases.

    Raises ManifestError with every problem of every file, each with its line, and FlagbenchError if there are no
    manifests at all.
    """
    folder = manifests_root(root)
    return _load(folder, _read_folder(folder, "claims", ClaimsManifest, claims_of))


def load_catalog_without_claims(root: Path | None = None) -> Catalog:
    """Load the cases, devices and stacks only, for commands that compare nothing with published rows.

    The claims are two thirds of all manifests: without them, such a command starts faster, and a mistake in a claim
    does not stop it. Raises as `load_catalog` does.
    """
    return _load(manifests_root(root), None)


def _load(folder: Path, published: Sequence[Document] | None) -> Catalog:
    """Load the manifests of a folder. `published`: the documents of its claims; None: the catalog gets no claims."""
    cases = _read_folder(folder, "cases", CaseManifest)
    devices = _read_folder(folder, "devices", DeviceModel)
    stacks = _read_folder(folder, "stacks", StackManifest)
    workloads = _read_folder(folder, CATALOGUE, CatalogueCases, "cases")
    limits = _read_limits(folder)
    check_manifests(cases, devices, stacks, published or (), workloads, limits)
    problems: list[Problem] = []
    for doc in (*cases, *devices, *stacks, *(published or ()), *workloads, limits):
        problems += doc.problems
    if problems:
        raise ManifestError(problems)
    return _build_catalog(folder, cases, devices, stacks, published, _workloads(workloads), limits.data)


def _workloads(documents: Sequence[Document]) -> Raw:
    """The workloads of cases by name: the content of catalogue/cases.yaml, if there is such a file."""
    if not documents:
        return {}
    workloads: Raw = documents[0].data["cases"]
    return workloads


def _build_catalog(
    root: Path,
    cases: Sequence[Document],
    devices: Sequence[Document],
    stacks: Sequence[Document],
    published: Sequence[Document] | None,
    workloads: Raw,
    limits: Raw,
) -> Catalog:
    """Build the catalog from documents without problems.

    Args:
        published: the claims; None if they are not loaded.
        workloads: the model and the task of each case, by the case's name.
        limits: the limits of an acceptance, and those between nodes.
    """
    stacks_by_name: dict[str, Stack] = {}
    cases_by_name: dict[str, Case] = {}
    for doc in cases:
        cases_by_name[doc.data["name"]] = _build_case(doc.data, doc.path, workloads, stacks_by_name)
    models: dict[str, DeviceModel] = {}
    for doc in devices:
        models[doc.data["id"]] = msgspec.convert({**doc.data, "raw": doc.data}, DeviceModel)
    for doc in stacks:
        stacks_by_name[doc.data["name"]] = build_stack(doc.data, doc.path, cases_by_name, models)
    claims: dict[str, Claim] = {}
    for doc in published or ():
        workload = cases_by_name[doc.data["case"]].workload
        for raw in doc.data["claims"]:
            claims[raw["id"]] = build_claim(raw, doc.data, workload, models)
    return Catalog(
        root=root,
        cases=cases_by_name,
        devices=models,
        stacks=stacks_by_name,
        claims=_UnreadClaims() if published is None else claims,
        limits={limit.id: limit for limit in msgspec.convert(limits["limits"], tuple[AcceptanceLimit, ...])},
        fleet_limits=msgspec.convert(limits["nodes"], FleetLimits),
    )


def _read_limits(folder: Path) -> Document:
    """Read the limits of a folder of manifests, or flagbench's own if the folder has none."""
    path = folder / LIMITS_FILE
    if not path.exists():
        path = shipped_manifests() / LIMITS_FILE
    return read_document(path, f"{path.parent.name}/{LIMITS_FILE}", LimitsManifest)


def _read_folder(root: Path, name: str, model: type, stem: str | None = None) -> list[Document]:
    """Read the manifests of the folder `name`, sorted, and check them against their type.

    Args:
        stem: the name of the only file to read, without `.yaml`; None: all files.
    """
    documents = []
    for path in sorted((root / name).glob("*.yaml"), key=lambda path: path.stem):
        if stem in (None, path.stem):
            documents.append(read_document(path, f"{root.name}/{name}/{path.name}", model))
    return documents


def _build_case(raw: Raw, path: Path, workloads: Raw, stacks: Mapping[str, Stack]) -> Case:
    """Build a Case from its manifest's data. The groups in `depends_on` are expanded to the names of conditions.

    Args:
        stacks: the stacks of its catalog; they may be added after this call.
    """
    metrics = []
    for metric in raw["metrics"]:
        conditions: list[str] = []
        for group in metric["depends_on"]:
            conditions += raw["condition_groups"][group]
        metrics.append({**metric, "depends_on": conditions})
    workload = workloads.get(raw["name"], {"model": raw["name"], "task": "other"})
    case = msgspec.convert({**raw, "metrics": metrics, "workload": workload, "raw": raw, "path": path}, Case)
    return replace(case, stacks=stacks)


def build_stack(
    raw: Raw, path: Path, cases: Mapping[str, Case], devices: Mapping[str, DeviceModel] | None = None
) -> Stack:
    """Build a Stack from its manifest's data.

    Args:
        cases: the cases of its catalog. The stack runs each one, unless the stack or the case excludes the other.
            Those of other families than the stack's are in its `does_not_run`, but not in its copy for images, which
            have only the code of cases that run: a new case would change the images of the stack.
        devices: the device models of its catalog; None: the stack gets no accelerators.
    """
    excluded = dict(raw["does_not_run"])
    families = raw.get("families")
    runs = []
    for name, case in sorted(cases.items()):
        if families and (case.family or name) not in families:
            excluded.setdefault(name, f"only cases of the family {' or '.join(families)} run on it")
        if name not in excluded and raw["name"] not in case.does_not_run:
            runs.append(name)
    accelerators = []
    if devices is not None:
        accelerators = [devices[name] for name in raw["devices"]]
    fields = {**raw, "does_not_run": excluded, "runs": runs, "raw": raw, "path": path, "accelerators": ()}
    stack = msgspec.convert(fields, Stack)
    compiled = {key: field for key, field in raw.items() if key not in ("families", "devices")}
    compiled["accelerators"] = [model.read_by_images for model in accelerators]
    return replace(stack, accelerators=tuple(accelerators), raw=compiled)
