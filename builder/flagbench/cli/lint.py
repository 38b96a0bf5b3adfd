"""`flagbench lint`: rules for Dockerfiles, ours and hadolint's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.errors import ExitCode, FlagbenchError


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATHS]", help="Dockerfiles or folders; else every image as it is rendered."),
    ] = None,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Every image with a template of your own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check Dockerfiles against flagbench's rules and hadolint.

    Without PATHS or --template, the images of the manifests are checked against flagbench's rules alone.

    Prints one finding a line, FILE:LINE: RULE: TEXT, and exits 2 if there is one. --json prints
    {"findings": [{"path", "line", "rule", "text"}]}.
    """
    if paths and template is not None:
        raise FlagbenchError(
            "a template is not a Dockerfile: give paths or --template, not both",
            remedy="write `flagbench lint --template FILE` for what the template makes of every image",
        )
    try:
        # Of the extra `lint`; the command's --help needs none of it.
        from flagbench.render.lint import lint_catalog, lint_paths
    except ModuleNotFoundError as error:
        raise FlagbenchError(
            f"{error.name}, which reads Dockerfiles, is not installed",
            remedy="install it with `pip install 'flagbench[lint]'`",
        ) from None
    catalog = load_catalog(claims=False)
    findings = lint_paths(paths, catalog) if paths else lint_catalog(catalog, template)
    if as_json:
        echo_json({"findings": [vars(finding) for finding in findings]})
    else:
        for finding in findings:
            print(str(finding))
        if not findings:
            print("no findings")
    if findings:
        raise typer.Exit(int(ExitCode.USAGE))
