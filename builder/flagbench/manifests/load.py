"""Everything in manifests/ read, validated, cross-checked and typed, or every problem at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from flagbench.errors import FlagbenchError
from flagbench.manifests.checks import check
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.documents import Document, ManifestError, Problem, read_document
from flagbench.manifests.limits import AcceptanceLimit, LimitsManifest
from flagbench.manifests.model import Case, CaseManifest, Catalog
from flagbench.manifests.rows import CATALOGUE, CatalogueCases, Claim, ClaimsManifest, Raw, build_claim
from flagbench.manifests.stack import Stack, StackManifest
from flagbench.schema import shipped_manifests, violations
from flagbench.system.files import expanded

_MANIFESTS_VARIABLE = "FLAGBENCH_MANIFESTS"
LIMITS_FILE = "limits.yaml"


class _Unread(Mapping[str, Claim]):
    """Claims that were not loaded: to use them is a programming error, and not an empty catalog."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("the catalog was loaded without claims")

    __getitem__ = __iter__ = __len__ = _refuse


def manifests_root(root: Path | None = None) -> Path:
    """The folder of manifests: `root`, else FLAGBENCH_MANIFESTS, else flagbench's own.

    Raises FlagbenchError (usage) if that is not a folder of manifests.
    """
    folder, origin = root, "given was"
    if folder is None:
        variable = os.environ.get(_MANIFESTS_VARIABLE, "")
        if not variable:
            return shipped_manifests()
        folder, origin = expanded(variable), f"{_MANIFESTS_VARIABLE} names"
    if not (folder / "cases").is_dir():
        raise FlagbenchError(
            f"no manifests at {folder}: there is no cases/ in it ({origin} this folder)",
            remedy=f"name a folder with cases/, devices/, stacks/ and claims/, or unset {_MANIFESTS_VARIABLE}",
        )
    return folder.resolve()


def load_catalog(root: Path | None = None, *, claims: bool | str = True) -> Catalog:
    """The manifests in `root`, else in FLAGBENCH_MANIFESTS, else flagbench's own.

    Args:
        claims: whether to read the claims too, which are two thirds of all manifests and grow with what is published;
            or the name of a case, to read only its claims.

    Raises ManifestError with every problem of every file, each with its line, and FlagbenchError if there are no
    manifests at all.
    """
    folder = manifests_root(root)
    cases = _read_folder(folder, "cases", CaseManifest)
    devices = _read_folder(folder, "devices", DeviceModel)
    stacks = _read_folder(folder, "stacks", StackManifest)
    published: list[Document] = []
    if isinstance(claims, str):
        published = _read_folder(folder, "claims", ClaimsManifest, claims)
    elif claims:
        published = _read_folder(folder, "claims", ClaimsManifest)
    workloads = _read_folder(folder, CATALOGUE, CatalogueCases, "cases")
    limits = _read_limits(folder)
    check(cases, devices, stacks, published, workloads, limits)
    problems: list[Problem] = []
    for doc in (*cases, *devices, *stacks, *published, *workloads, limits):
        problems += doc.problems
    if problems:
        raise ManifestError(problems)
    return _build_catalog(
        folder, cases, devices, stacks, published if claims else None, _workloads(workloads), limits.data["limits"]
    )


def _workloads(documents: Sequence[Document]) -> Raw:
    """The workloads of cases by name, in the one document that there is, or none."""
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
    limits: Sequence[Raw],
) -> Catalog:
    """The catalog of documents without problems; `published`: the claims, None if they are not loaded."""
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
        claims=_Unread() if published is None else claims,
        limits={limit.id: limit for limit in msgspec.convert(limits, tuple[AcceptanceLimit, ...])},
    )


def _read_limits(folder: Path) -> Document:
    """The limits of a folder of manifests; flagbench's own where it has none."""
    path = folder / LIMITS_FILE
    if not path.exists():
        path = shipped_manifests() / LIMITS_FILE
    return read_manifest(path, f"{path.parent.name}/{LIMITS_FILE}", LimitsManifest)


def _read_folder(root: Path, name: str, model: type, stem: str | None = None) -> list[Document]:
    """The manifests of a folder, or the one of it with a stem, checked against their type."""
    documents = []
    for path in sorted((root / name).glob("*.yaml"), key=lambda path: path.stem):
        if stem in (None, path.stem):
            documents.append(read_manifest(path, f"{root.name}/{name}/{path.name}", model))
    return documents


def read_manifest(path: Path, title: str, model: type) -> Document:
    """A file, checked against the type of its manifest; `title` is its name in messages."""
    document = read_document(path, title)
    if document.problems:
        return document
    for field_path, message in violations(model, document.data):
        document.problem(field_path, message)
    return document


def _build_case(raw: Raw, path: Path, workloads: Raw, stacks: Mapping[str, Stack]) -> Case:
    """A Case from its manifest's data, the groups in `depends_on` expanded to condition names.

    `stacks`: those of its catalog, which may be added after this call.
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
    """A Stack from its manifest's data; it runs every case of `cases` that neither side refuses.

    `devices`: those of its catalog, of which it lists some.
    """
    runs = []
    for name, case in sorted(cases.items()):
        if name not in raw["does_not_run"] and raw["name"] not in case.does_not_run:
            runs.append(name)
    accelerators = []
    if devices is not None:
        accelerators = [devices[name] for name in raw["devices"]]
    stack = msgspec.convert({**raw, "runs": runs, "raw": raw, "path": path, "accelerators": ()}, Stack)
    compiled = {key: field for key, field in raw.items() if key != "devices"}
    compiled["accelerators"] = [model.read_by_images for model in accelerators]
    return replace(stack, accelerators=tuple(accelerators), raw=compiled)
