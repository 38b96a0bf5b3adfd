"""Everything in manifests/ read, validated, cross-checked and typed, or every problem at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from flagbench.catalog.build import build_case, build_claims, build_stack
from flagbench.catalog.checks import check
from flagbench.catalog.documents import Document, ManifestError, read_document
from flagbench.catalog.model import Catalog, Claim
from flagbench.errors import FlagbenchError
from flagbench.files import expanded
from flagbench.schema import Kind, shipped_manifests, violations

_VARIABLE = "FLAGBENCH_MANIFESTS"


class _Unread(Mapping[str, Claim]):
    """Claims that were left out: asking for any is a mistake of the program, not an empty catalog."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("the catalog was loaded without claims")

    __getitem__ = __iter__ = __len__ = _refuse


def manifests_root(root: Path | None = None) -> Path:
    """The folder that holds cases/, stacks/ and claims/: `root`, else FLAGBENCH_MANIFESTS, else flagbench's own.

    Raises FlagbenchError (usage) if that is not a folder of manifests.
    """
    named = os.environ.get(_VARIABLE, "")
    if root is None and not named:
        return shipped_manifests()
    folder = expanded(named) if root is None else root
    if not (folder / "cases").is_dir():
        origin = f"{_VARIABLE} names" if root is None else "given was"
        raise FlagbenchError(
            f"no manifests at {folder}: there is no cases/ in it ({origin} this folder)",
            remedy=f"name a folder with cases/, stacks/ and claims/, or unset {_VARIABLE} for flagbench's own",
        )
    return folder.resolve()


def load_catalog(root: Path | None = None, *, claims: bool = True) -> Catalog:
    """The manifests in `root`, else in FLAGBENCH_MANIFESTS, else flagbench's own.

    Args:
        claims: whether to read the claims too, which are two thirds of it all and grow with what is published.

    Raises ManifestError with every problem of every file, each with its line, and FlagbenchError where
    there are no manifests at all. Costs some 70 ms of CPU beyond the import of jsonschema, 35 without claims.
    """
    folder = manifests_root(root)
    cases = _read_folder(folder, "cases", "case")
    stacks = _read_folder(folder, "stacks", "stack")
    published = _read_folder(folder, "claims", "claims") if claims else []
    documents = cases + stacks + published
    check(cases, stacks, published)
    problems = [problem for doc in documents for problem in doc.problems]
    if problems:
        raise ManifestError(problems)
    built = {doc.data["name"]: build_case(doc.data, doc.path) for doc in cases}
    return Catalog(
        root=folder,
        cases=built,
        stacks={doc.data["name"]: build_stack(doc.data, doc.path, built) for doc in stacks},
        claims={claim.id: claim for doc in published for claim in build_claims(doc.data, doc.path)}
        if claims
        else _Unread(),
    )


def _read_folder(root: Path, name: str, kind: Kind) -> list[Document]:
    """Every manifest of a folder, held against its schema."""
    documents = [
        read_document(path, f"{root.name}/{name}/{path.name}") for path in sorted((root / name).glob("*.yaml"))
    ]
    for doc in documents:
        if doc.problems:
            continue
        if kind == "case" and isinstance(doc.data, dict) and "engines" not in doc.data:
            doc.data["engines"] = {"torch": {"layout": ["dp"]}}
            _notice_of_engines(doc.path)
        for path, what in violations(kind, doc.data):
            doc.problem(path, what)
    return documents


@cache
def _notice_of_engines(path: Path) -> None:
    sys.stderr.write(
        f"flagbench: {path} has no `engines`, which the next version requires; "
        "write what is taken now: `engines: {torch: {layout: [dp]}}`\n"
    )
