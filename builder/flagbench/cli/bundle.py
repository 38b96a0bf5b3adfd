"""`flagbench bundle`: checks the bundle of a reproduction or an acceptance, and computes its result again.

A bundle is a .tar.gz with records, and with the verdict or certificate that follows from them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench.accept import certificate
from flagbench.accept.certificate_page import certificate_blocks
from flagbench.cli.options import JsonOption, WideOption
from flagbench.console.output import echo_json, print_page
from flagbench.console.page import Lines
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.records.bundle_documents import opened
from flagbench.report.verdict_page import verdict_blocks
from flagbench.runs.reproduce.bundle import BundleCheck, check_bundle, read_contents
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

    Prints whether the bundle is valid, then what is computed again. Exits 0 where the bundle is whole and what it
    says follows from its records, whatever the verdict is; 3 where it is damaged, 12 where it does not follow.
    --json prints {"bundle", "ok", "sha256", "claim", "verdict", "stated_by", "files", "notes", "problems"}; verdict
    is as `flagbench verify --json` prints it. For the bundle of `accept` it has "certificate" in place of "claim",
    "verdict" and "stated_by".
    """
    catalog = load_catalog()
    checked: BundleCheck | certificate.CertificateCheck
    about: dict[str, Any]
    with opened(bundle) as files:
        count = len(files)
        if certificate.CERTIFICATE in files:
            subject = "certificate"
            checked = certificate.check(files, catalog)
            about = {"certificate": checked.certificate.to_dict()}
            blocks = []
            if not checked.problems:
                blocks = certificate_blocks(checked.certificate)
        else:
            subject = "verdict"
            contents = read_contents(files)
            checked = check_bundle(contents, catalog)
            about = {
                "claim": contents.claim["id"],
                "verdict": checked.result.to_dict(),
                "stated_by": contents.writer_version,
            }
            blocks = verdict_blocks(checked.records, checked.result, wide=wide)
    problems = checked.problems
    sha256 = sha256_of(bundle)
    if json:
        document = {
            "schema": "bundle-verification/v1",
            "bundle": str(bundle),
            "ok": not problems,
            "sha256": sha256,
            **about,
            "files": count,
            "notes": checked.notes,
            "problems": problems,
        }
        echo_json(document)
    else:
        if problems:
            text = f"INVALID: the {subject} does not follow from the records in this bundle"
            heading = Lines((text,), "bold red")
        else:
            text = f"VALID: all files match their checksums, and the {subject} follows from the records"
            heading = Lines((text,), "bold green")
        notes = [f"note: {note}" for note in checked.notes]
        print_page(heading, *blocks, Lines((f"sha256 of the bundle {sha256}", *notes)), wide=wide)
    if problems:
        raise FlagbenchError(
            f"the bundle {brief(str(bundle))} is not valid: {'; '.join(problems)}",
            remedy="do not rely on it; ask its author for the records, or run it yourself",
            code=ExitCode.INVALID,
        )
