"""Does the verdict in a bundle follow from the records in it: computed again by this flagbench, and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench.records.model import Record
from flagbench.records.series import with_records
from flagbench.runs.reproduce.contents import Contents, claim_document, this_flagbench, to_json
from flagbench.runs.reproduce.verdict import series_verdict
from flagbench.terminal import brief
from flagbench.verdict import VerifyResult
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class BundleCheck:
    """The verdict on the records of a bundle, and what is to be said of the bundle."""

    records: list[Record]
    result: VerifyResult
    problems: list[str]
    """Where the bundle contradicts it."""
    notes: list[str]


def check(contents: Contents, catalog: Catalog) -> BundleCheck:
    """The verdict computed again. Raises FlagbenchError (data) where this flagbench does not have the claim."""
    name, author = contents.claim["id"], brief(contents.stated_by)
    claim = catalog.claims.get(name)
    if claim is None:
        raise FlagbenchError(
            f"the bundle is of the claim '{brief(name)}', which this flagbench {__version__} does not have",
            remedy=f"use the flagbench that wrote it, {author}, or a newer one",
            code=ExitCode.DATA,
        )
    notes, problems = [], [*contents.contradicted[:5]]
    series = with_records(contents.series, lambda run: contents.records.get(run.record_id or ""))
    records, result = series_verdict(series, claim, catalog.cases[claim.case])
    fresh = _plain(result.to_dict())
    published = unlike(contents.claim, _plain(claim_document(claim)))
    if published:
        notes.append(f"the claim has changed since: {', '.join(published[:5])}; the verdict is on the present one")
    # What a version does not know changes with every version, and no number with it.
    differing = [path for path in unlike(contents.verdict, fresh) if path != "not_compared"]
    if contents.verdict.get("verdict") != fresh["verdict"]:
        problems.append(
            f"its verdict is {brief(str(contents.verdict.get('verdict')))} by flagbench {author}, and "
            f"{fresh['verdict']} computed again by {__version__}: {result.reason}"
        )
    elif differing and not published and contents.reproduction.get("flagbench") == this_flagbench():
        problems.append(f"its verdict does not follow from its records in {', '.join(differing[:5])}")
    elif differing:
        notes.append(f"computed again by flagbench {__version__}, the verdict differs in {', '.join(differing[:5])}")
    return BundleCheck(records, result, problems, [*notes, *contents.without_raw])


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is read from its file."""
    plain: dict[str, Any] = json.loads(to_json(document))
    return plain


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The paths of the fields in which two JSON objects differ, sorted."""
    return sorted({*_unlike(first, second, "")})


def _unlike(first: Any, second: Any, path: str) -> Iterable[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in {*first, *second}:
            yield from _unlike(first.get(name), second.get(name), f"{path}.{name}" if path else name)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _unlike(one, other, f"{path}[{number}]")
    elif first != second:
        yield path
