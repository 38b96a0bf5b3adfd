"""The options that several commands have, as types of their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where records are kept: a folder or s3://bucket/prefix. Default: FLAGBENCH_STORE.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WideOption = Annotated[
    bool,
    typer.Option("--wide", help="Show every detail and whole tables; in a pipe, tables are always whole."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write what was checked as JUnit XML, too.")
]
