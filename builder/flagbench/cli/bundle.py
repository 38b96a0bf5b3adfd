"""`flagbench bundle`: the bundle of a reproduction, checked and computed again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench._version import __version__
from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Catalog
from flagbench.checkout import commit
from flagbench.cli.options import JsonOption, WideOption
from flagbench.cli.output import echo_json
from flagbench.cli.reproduce_verdict import series_verdict
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.report import verdict_table
from flagbench.reproduce.bundle import DamagedBundle, Opened, opened
from flagbench.reproduce.contents import Contents, claim_document, read_contents, to_json
from flagbench.reproduce.signature import SignatureCheck, check_signature
from flagbench.reproduce.surroundings import unlike
from flagbench.stores.bundle_check import BundleError
from flagbench.stores.series import with_records
from flagbench.terminal import brief, visible
from flagbench.verify import VerifyResult

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


@app.callback()
def group() -> None:
    """Check the bundle of a reproduction, without a network."""


@app.command("verify")
def verify(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="The .tar.gz or the folder that `flagbench reproduce` wrote.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Require a signature by this public key: a file, a minisign key (RW...), or for cosign a URL.",
        ),
    ] = None,
    digest: Annotated[
        str | None, typer.Option(metavar="SHA256", help="The sha256 of the manifest, as its author published it.")
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Check every file of a bundle against its manifest, compute the verdict again, and check the signature.

    Exits 0 where the bundle is whole and its verdict follows from its records, whatever the verdict is; 3 where any
    byte of it has changed, 12 where its verdict does not follow, the signature or the digest is not valid, or --key
    is given and nothing is signed.
    --json prints {"bundle", "ok", "manifest_sha256", "claim", "verdict", "stated_by", "signature", "notes",
    "problems"}; verdict is as `flagbench verify --json` prints it.
    """
    expected = None if digest is None else _SHA256.fullmatch(digest)
    if digest is not None and expected is None:
        raise FlagbenchError(
            f"--digest '{brief(digest)}' is not a sha256", remedy="give the 64 digits that reproduce printed"
        )
    with opened(bundle) as found:
        try:
            contents = read_contents(found.folder, found.manifest)
        except BundleError as error:
            raise DamagedBundle(str(bundle), str(error)) from error
        signature = check_signature(found.folder, key)
        catalog = load_catalog()
        table, result, problems, notes = _computed(contents, found, catalog, wide=wide)
        if found.sealed is False:
            notes.append("it was packed again by another tool: its files are whole, its own bytes prove nothing")
        if signature.state == "signature INVALID":
            problems.append(f"the signature is not valid: {signature.detail}")
        if signature.state == "not signed" and key is not None:
            problems.append("it is not signed, and --key names a signer")
        if expected is not None and expected[1].lower() != found.digest:
            problems.append(f"the sha256 of its manifest is {found.digest}, not the one that was given")
        if json:
            echo_json(_answer(bundle, found, result, signature, notes, problems))
        else:
            _show(found, table, signature, notes)
        if problems:
            raise FlagbenchError(
                f"the bundle {brief(str(bundle))} is not valid: {'; '.join(problems)}",
                remedy="do not rely on it; ask its author for the records, or reproduce the row yourself",
                code=ExitCode.INVALID,
            )


def _computed(
    contents: Contents, found: Opened, catalog: Catalog, *, wide: bool
) -> tuple[str, VerifyResult, list[str], list[str]]:
    """The verdict by this flagbench, as a table and as data; where the bundle contradicts it, and what to know."""
    name = found.manifest.claim
    claim = catalog.claims.get(name)
    if claim is None:
        raise FlagbenchError(
            f"the bundle is of the claim '{brief(name)}', which this flagbench {__version__} does not have",
            remedy=f"use the flagbench that wrote it, {brief(found.manifest.flagbench.version)}, or a newer one",
            code=ExitCode.DATA,
        )
    notes, problems = [], [*contents.contradicted[:5]]
    series = with_records(contents.series, lambda run: contents.records.get(run.record_id or ""))
    records, result = series_verdict(series, claim, catalog.cases[claim.case])
    fresh: dict[str, Any] = _plain(result.to_dict())
    published = unlike(contents.claim, _plain(claim_document(claim)))
    if published:
        notes.append(f"the claim has changed since: {', '.join(published[:5])}; the verdict is on the present one")
    author = found.manifest.flagbench.version
    differing = unlike(contents.verdict, fresh)
    if contents.verdict.get("verdict") != fresh["verdict"]:
        problems.append(
            f"its verdict is {brief(str(contents.verdict.get('verdict')))} by flagbench {brief(author)}, and "
            f"{fresh['verdict']} computed again by {__version__}: {result.reason}"
        )
    elif differing and not published and author == __version__ and found.manifest.flagbench.commit == commit():
        problems.append(f"its verdict does not follow from its records in {', '.join(differing[:5])}")
    elif differing:
        notes.append(f"computed again by flagbench {__version__}, the verdict differs in {', '.join(differing[:5])}")
    notes += contents.without_raw
    return verdict_table(records, result, wide=wide), result, problems, notes


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is read from its file."""
    import json

    plain: dict[str, Any] = json.loads(to_json(document))
    return plain


def _answer(
    bundle: Path,
    found: Opened,
    result: VerifyResult,
    signature: SignatureCheck,
    notes: list[str],
    problems: list[str],
) -> dict[str, Any]:
    return {
        "schema": "bundle-verification/v1",
        "bundle": str(bundle),
        "ok": not problems,
        "manifest_sha256": found.digest,
        "claim": found.manifest.claim,
        "verdict": result.to_dict(),
        "stated_by": found.manifest.flagbench.version,
        "signature": {"state": signature.state, "detail": signature.detail},
        "files": len(found.manifest.files),
        "notes": notes,
        "problems": problems,
    }


def _show(found: Opened, table: str, signature: SignatureCheck, notes: list[str]) -> None:
    print(table)
    manifest = found.manifest
    print(f"{len(manifest.files)} files are as the manifest says, sha256 {found.digest}")
    print(visible(f"written at {manifest.created_at} by flagbench {manifest.flagbench.version}"))
    print(visible(f"{signature.state}: {signature.detail}"))
    for note in notes:
        print(visible(f"note: {note}"))
