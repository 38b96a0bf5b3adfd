"""`flagbench wheels`: fill a folder with a stack's packages, for building its images where there is no network."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import get_stack
from flagbench.cli import complete
from flagbench.cli.options import CaBundleOption, PipSourceOption
from flagbench.cli.output import echo_json
from flagbench.files import expanded
from flagbench.locks.files import read_lock
from flagbench.locks.metadata import read_tables
from flagbench.locks.sources import Sources
from flagbench.locks.wheelhouse import fill_wheelhouse
from flagbench.render.roots import images_root


def command(
    stack_name: Annotated[
        str, typer.Argument(metavar="STACK", autocompletion=complete.stacks, help="The stack, by name or alias.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The wheelhouse; what is there and right is kept.")
    ],
    allow_unlocked: Annotated[
        bool, typer.Option("--allow-unlocked", help="Also fetch what the lock leaves unresolved, unchecked.")
    ] = False,
    pip_source: PipSourceOption = None,
    ca_bundle: CaBundleOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the files as JSON.")] = False,
) -> None:
    """Fetch every package of a stack's lock into a folder, each checked against its hash.

    `flagbench build CASE:STACK --wheelhouse DIR` then needs no package index. An interrupted command
    continues where it was; a damaged file is fetched again.

    --json prints {"stack", "folder", "files": [{name, version, file, sha256, size, fetched, locked}]}; size is in
    bytes.
    """
    catalog = load_catalog(claims=False)
    stack = get_stack(stack_name, catalog)
    images = images_root(catalog)
    files = fill_wheelhouse(
        stack,
        read_lock(stack, images),
        expanded(out),
        sources=Sources.chosen(pip_source, ca_bundle),
        tables=read_tables(images),
        allow_unlocked=allow_unlocked,
        report=partial(typer.echo, err=True),
    )
    if as_json:
        echo_json({"stack": stack.name, "folder": str(out), "files": [asdict(file) for file in files]})
        return
    size = sum(file.size for file in files)
    print(f"{out}: {len(files)} files of {stack.name}, {size / 1e6:.0f} MB")
    for file in files:
        if not file.locked:
            print(f"  not in the lock: {file.file} sha256:{file.sha256}")
