"""Everything in manifests/ read, validated, cross-checked and typed, or every problem at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from flagbench.errors import FlagbenchError
from flagbench.manifests.checks import check
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.documents import Document, ManifestError, read_document
from flagbench.manifests.limits import AcceptanceLimit, LimitsManifest
from flagbench.manifests.model import Case, CaseManifest, Catalog
from flagbench.manifests.rows import CATALOGUE, CatalogueCases, Claim, ClaimsManifest, Raw, build_claim
from flagbench.manifests.stack import Stack, StackManifest
from flagbench.schema import shipped_manifests, violations
from flagbench.system.files import expanded

_MANIFESTS_VARIABLE = "FLAGBENCH_MANIFESTS"
LIMITS_FILE = "limits.yaml"


class _Unread(Mapping[str, Claim]):
    """Claims that were left out: asking for any is a mistake of the program, not an empty catalog."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("the catalog was loaded without claims")

    __getitem__ = __iter__ = __len__ = _refuse


def manifests_root(root: Path | None = None) -> Path:
    """The folder of manifests: `root`, else FLAGBENCH_MANIFESTS, else flagbench's own.

    Raises FlagbenchError (usage) if that is not a folder of manifests.
    """
    named = os.environ.get(_MANIFESTS_VARIABLE, "")
    if root is None and not named:
        return shipped_manifests()
    folder = expanded(named) if root is None else root
    if not (folder / "cases").is_dir():
        origin = f"{_MANIFESTS_VARIABLE} names" if root is None else "given was"
        raise FlagbenchError(
            f"no manifests at {folder}: there is no cases/ in it ({origin} this folder)",
            remedy=f"name a folder with cases/, devices/, stacks/ and claims/, or unset {_MANIFESTS_VARIABLE}",
        )
    return folder.resolve()


def load_catalog(root: Path | None = None, *, claims: bool | str = True) -> Catalog:
    """The manifests in `root`, else in FLAGBENCH_MANIFESTS, else flagbench's own.

    Args:
        claims: whether to read the claims too, which are two thirds of it all and grow with what is published. The
            name of a case: only its claims, which its own file has.

    Raises ManifestError with every problem of every file, each with its line, and FlagbenchError where
    there are no manifests at all.
    """
    folder = manifests_root(root)
    cases = _read_folder(folder, "cases", CaseManifest)
    devices = _read_folder(folder, "devices", DeviceModel)
    stacks = _read_folder(folder, "stacks", StackManifest)
    published = (
        _read_folder(folder, "claims", ClaimsManifest, claims if isinstance(claims, str) else "*") if claims else []
    )
    named = _read_folder(folder, CATALOGUE, CatalogueCases, "cases")
    limits = read_manifest(folder / LIMITS_FILE, f"{folder.name}/{LIMITS_FILE}", LimitsManifest)
    documents = [*cases, *devices, *stacks, *published, *named, limits]
    check(cases, devices, stacks, published, named, limits)
    problems = [problem for doc in documents for problem in doc.problems]
    if problems:
        raise ManifestError(problems)
    built_stacks: dict[str, Stack] = {}
    workloads = named[0].data["cases"] if named else {}
    built = {doc.data["name"]: _case(doc.data, doc.path, workloads, built_stacks) for doc in cases}
    known = {doc.data["id"]: msgspec.convert({**doc.data, "raw": doc.data}, DeviceModel) for doc in devices}
    built_stacks.update((doc.data["name"], build_stack(doc.data, doc.path, built, known)) for doc in stacks)
    rows: dict[str, Claim] = {}
    for doc in published:
        for raw in doc.data["claims"]:
            rows[raw["id"]] = build_claim(raw, doc.data, built[doc.data["case"]].workload, known)
    return Catalog(
        root=folder,
        cases=built,
        devices=known,
        stacks=built_stacks,
        claims=rows if claims else _Unread(),
        limits={limit.id: limit for limit in msgspec.convert(limits.data["limits"], tuple[AcceptanceLimit, ...])},
    )


def _read_folder(root: Path, name: str, model: type, stem: str = "*") -> list[Document]:
    """The manifests of a folder that have a name, by default all, checked against their type."""
    return [
        read_manifest(path, f"{root.name}/{name}/{path.name}", model)
        for path in sorted((root / name).glob("*.yaml"), key=lambda path: path.stem)
        if stem in ("*", path.stem)
    ]


def read_manifest(path: Path, shown: str, model: type) -> Document:
    """A file, checked against the type of its manifest; `shown` is its name in messages."""
    document = read_document(path, shown)
    if not document.problems:
        for where, what in violations(model, document.data):
            document.problem(where, what)
    return document


def _case(raw: Raw, path: Path, workloads: Raw, stacks: Mapping[str, Stack]) -> Case:
    """A Case from its manifest's data, the groups in `depends_on` expanded to condition names.

    `stacks`: those of its catalog, which may be added after this call.
    """
    groups = raw["condition_groups"]
    metrics = [
        {**metric, "depends_on": [condition for group in metric["depends_on"] for condition in groups[group]]}
        for metric in raw["metrics"]
    ]
    workload = workloads.get(raw["name"], {"model": raw["name"], "task": "other"})
    case = msgspec.convert({**raw, "metrics": metrics, "workload": workload, "raw": raw, "path": path}, Case)
    return replace(case, stacks=stacks)


def build_stack(
    raw: Raw, path: Path, cases: Mapping[str, Case], devices: Mapping[str, DeviceModel] | None = None
) -> Stack:
    """A Stack from its manifest's data; it runs every case of `cases` that neither side refuses.

    `devices`: those of its catalog, of which it lists some.
    """
    runs = [
        name
        for name, case in sorted(cases.items())
        if name not in raw["does_not_run"] and raw["name"] not in case.does_not_run
    ]
    listed = [(devices or {})[name] for name in raw["devices"]]
    stack = msgspec.convert({**raw, "runs": runs, "raw": raw, "path": path, "accelerators": ()}, Stack)
    compiled = {key: value for key, value in raw.items() if key != "devices"}
    compiled["accelerators"] = [model.read_by_images for model in listed]
    return replace(stack, accelerators=tuple(listed), raw=compiled)
