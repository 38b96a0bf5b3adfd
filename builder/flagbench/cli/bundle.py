"""`flagbench bundle`: the bundle of a reproduction, checked and computed again."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench.cli.options import JsonOption, WideOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.output import echo_json
from flagbench.records.bundle_archive import BundleError
from flagbench.records.series import with_records
from flagbench.report import verdict_table
from flagbench.runs.reproduce.bundle import DamagedBundle, opened
from flagbench.runs.reproduce.contents import Contents, claim_document, read_contents, this_flagbench, to_json
from flagbench.runs.reproduce.surroundings import unlike
from flagbench.runs.reproduce.verdict import series_verdict
from flagbench.terminal import brief, visible
from flagbench.verdict import VerifyResult
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Check the bundle of a reproduction, without a network."""


@app.command("verify")
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The .tar.gz that `flagbench reproduce` wrote.")],
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Check every file of a bundle against its checksums, and compute the verdict again.

    Exits 0 where the bundle is whole and its verdict follows from its records, whatever the verdict is; 3 where it
    is damaged, 12 where its verdict does not follow.
    --json prints {"bundle", "ok", "sha256", "claim", "verdict", "stated_by", "files", "notes", "problems"}; verdict
    is as `flagbench verify --json` prints it.
    """
    with opened(bundle) as files:
        try:
            contents = read_contents(files)
        except BundleError as error:
            raise DamagedBundle(bundle, str(error)) from error
        table, result, problems, notes = _computed(contents, load_catalog(), wide=wide)
        answer = {
            "schema": "bundle-verification/v1",
            "bundle": str(bundle),
            "ok": not problems,
            "sha256": sha256_of(bundle),
            "claim": contents.claim["id"],
            "verdict": result.to_dict(),
            "stated_by": contents.stated_by,
            "files": len(files),
            "notes": notes,
            "problems": problems,
        }
    if json:
        echo_json(answer)
    else:
        print(table)
        print(f"{len(files)} files match its checksums, sha256 of the bundle {answer['sha256']}")
        for note in notes:
            print(visible(f"note: {note}"))
    if problems:
        raise FlagbenchError(
            f"the bundle {brief(str(bundle))} is not valid: {'; '.join(problems)}",
            remedy="do not rely on it; ask its author for the records, or reproduce the row yourself",
            code=ExitCode.INVALID,
        )


def _computed(contents: Contents, catalog: Catalog, *, wide: bool) -> tuple[str, VerifyResult, list[str], list[str]]:
    """The verdict by this flagbench, as a table and as data; where the bundle contradicts it, and what to know."""
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
    fresh: dict[str, Any] = _plain(result.to_dict())
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
    notes += contents.without_raw
    return verdict_table(records, result, wide=wide), result, problems, notes


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is read from its file."""
    plain: dict[str, Any] = json_module.loads(to_json(document))
    return plain
