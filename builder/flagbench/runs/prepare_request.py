"""Requests to prepare the data and weights of a case, with the options of `flagbench prepare`.

To prepare is to check what was downloaded and convert it into the files that runs read (`launchers.prepare`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Stack
from flagbench.options import Text


@dataclass(frozen=True)
class PrepareOptions:
    """Options of `flagbench prepare`."""

    out: Annotated[Text, Option("--out", "-o", metavar="OUT", help="Where to write data/ and weights/.")] = None
    data: Annotated[Text, Option(metavar="SRC", help="The downloaded data, a file or a folder.")] = None
    weights: Annotated[Text, Option(metavar="SRC", help="The downloaded weights, a file or a folder.")] = None
    vocabulary: Annotated[Text, Option(metavar="FILE", help="The tokenizer's file, if the data are text.")] = None
    check: Annotated[bool, Option("--check", help="Verify all checksums of what is prepared in OUT.")] = False
    force: Annotated[bool, Option("--force", help="Replace what was prepared in OUT before.")] = False
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a summary.")] = False


@dataclass(frozen=True)
class PrepareRequest:
    """One preparation of a case's data, weights or both. Raises FlagbenchError (USAGE) where OUT is missing."""

    case: Case
    stack: Stack
    options: PrepareOptions

    def __post_init__(self) -> None:
        if self.options.out is None:
            raise FlagbenchError("--out is missing", remedy="give the folder for data/ and weights/: -o OUT")
