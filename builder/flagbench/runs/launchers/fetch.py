"""Prepared data and weights in a bucket, fetched into this user's cache by the image side's `fetch`.

A native run fetches by itself, and so does an image in a job. For a container on this machine the host fetches, which
needs neither boto3 nor credentials in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from flagbench.runs.launchers import native
from flagbench.runs.launchers.folders import SOURCE_VARIABLES
from flagbench.runs.request import RunRequest, is_address
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class FetchedRequest:
    """A request whose addresses were replaced by folders."""

    request: RunRequest
    environment: dict[str, str]
    """SOURCE_VARIABLES of what was fetched."""


def fetch(request: RunRequest) -> FetchedRequest | int:
    """Fetch what is in a bucket; the exit code where that failed, of which the image side has told why.

    Raises FlagbenchError (usage) without the image side or boto3.
    """
    options = request.options
    if not (is_address(options.data) or is_address(options.weights)):
        return FetchedRequest(request, {})
    native.require_modules(("flagbench_cases",), "fetching data from a bucket")
    given = {"--data": options.data, "--weights": options.weights}
    asked = [f"{name}={value}" for name, value in given.items() if is_address(value)]
    if options.weights is not None and not is_address(options.weights):
        asked.append("--no-weights")
    ended = native.follow(["fetch", request.case.name, *asked], request.stack, {})
    if ended.code not in set(ExitCode):
        raise native.explain(ended)
    if ended.code:
        return ended.code
    folders = json.loads(ended.printed)["folders"]
    changed: dict[str, Any] = {kind: facts["folder"] for kind, facts in folders.items()}
    sources = {SOURCE_VARIABLES[kind]: facts["url"] for kind, facts in folders.items()}
    return FetchedRequest(replace(request, options=replace(options, **changed)), sources)
