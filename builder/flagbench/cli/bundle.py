"""`flagbench bundle`: the bundle of a reproduction, checked and computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flagbench.accept import certificate
from flagbench.cli.options import JsonOption, WideOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.output import echo_json, print_page
from flagbench.report import verdict_table
from flagbench.report.certificate_page import certificate_blocks
from flagbench.runs.reproduce.bundle import check, opened, read_contents
from flagbench.terminal import brief, visible
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Check the bundle of a reproduction or an acceptance, without a network."""


@app.command("verify")
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The .tar.gz of `reproduce` or `accept`.")],
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Check every file of a bundle against its checksums, and compute the verdict or the certificate again.

    Exits 0 where the bundle is whole and its verdict follows from its records, whatever that is; 3 where it
    is damaged, 12 where its verdict does not follow.
    --json prints {"bundle", "ok", "sha256", "claim", "verdict", "stated_by", "files", "notes", "problems"}; verdict
    is as `flagbench verify --json` prints it. For the bundle of `accept` it has "certificate" in place of "claim",
    "verdict" and "stated_by".
    """
    catalog = load_catalog()
    with opened(bundle) as files:
        if certificate.CERTIFICATE in files:
            _print_certificate(bundle, certificate.check(files, catalog), len(files), wide=wide, as_json=json)
            return
        contents = read_contents(files)
    found = check(contents, catalog)
    answer = {
        "schema": "bundle-verification/v1",
        "bundle": str(bundle),
        "ok": not found.problems,
        "sha256": sha256_of(bundle),
        "claim": contents.claim["id"],
        "verdict": found.result.to_dict(),
        "stated_by": contents.stated_by,
        "files": contents.files,
        "notes": found.notes,
        "problems": found.problems,
    }
    if json:
        echo_json(answer)
    else:
        print(verdict_table(found.records, found.result, wide=wide))
        print(f"{contents.files} files match its checksums, sha256 of the bundle {answer['sha256']}")
        for note in found.notes:
            print(visible(f"note: {note}"))
    _refuse(bundle, found.problems)


def _print_certificate(
    bundle: Path, found: certificate.CertificateCheck, files: int, *, wide: bool, as_json: bool
) -> None:
    stated = found.certificate
    answer = {
        "schema": "bundle-verification/v1",
        "bundle": str(bundle),
        "ok": not found.problems,
        "sha256": sha256_of(bundle),
        "certificate": stated,
        "files": files,
        "notes": found.notes,
        "problems": found.problems,
    }
    if as_json:
        echo_json(answer)
    else:
        print_page(*certificate_blocks(stated), wide=wide)
        print(f"{files} files match its checksums, sha256 of the bundle {answer['sha256']}")
        for note in found.notes:
            print(visible(f"note: {note}"))
    _refuse(bundle, found.problems)


def _refuse(bundle: Path, problems: Sequence[str]) -> None:
    if problems:
        raise FlagbenchError(
            f"the bundle {brief(str(bundle))} is not valid: {'; '.join(problems)}",
            remedy="do not rely on it; ask its author for the records, or run it yourself",
            code=ExitCode.INVALID,
        )
