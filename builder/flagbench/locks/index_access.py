"""Finds package indexes that refuse access: uv does not tell them from indexes without the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from requests import RequestException, Session

from flagbench.locks.model import canonical
from flagbench.locks.session import TIMEOUT, IndexSession, index_urls

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

CAUSE = "wants an account, or refuses the one it was given"
REMEDY = (
    "give an account that may read the index: in the URL of --pip-source or of pip's configuration, or in netrc; "
    "a proxy's account in the URL of the proxy"
)
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


def refusing_indexes(stack: Stack, environment: Mapping[str, str], ca_bundle: Path | None) -> dict[str, int]:
    """The indexes that refuse every direct requirement of a stack: URL as configured, to HTTP status.

    One refused package is not enough: some indexes refuse every package that they do not have.

    Args:
        environment: uv's, see `Sources.uv_environment`.
        ca_bundle: certificates (PEM) to trust instead of the system's.
    """
    if environment.get("UV_NO_INDEX"):
        return {}
    names = [canonical(line.partition("==")[0].strip()) for line in (*stack.build.packages, *stack.build.optional)]
    names += [canonical(package.name) for package in stack.build.compiled]
    with IndexSession(environment, ca_bundle, retries=0) as session:
        asked = {index: _refusal(session, index, names) for index in index_urls(environment)}
    return {index: status for index, status in asked.items() if status is not None}


def _refusal(session: Session, index: str, names: Iterable[str]) -> int | None:
    """The HTTP status with which an index refuses all of the packages; None if it does not."""
    status = None
    for name in names:
        try:
            with session.get(f"{index.rstrip('/')}/{name}/", timeout=TIMEOUT, stream=True) as answer:
                status = answer.status_code
        except (RequestException, ValueError):
            return None
        if status not in _REFUSALS:
            return None
    return status
