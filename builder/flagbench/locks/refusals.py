"""Which package indexes refuse to be asked: uv takes a refusal for an index that does not have the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import OpenerDirector

from flagbench.locks.download import opener_with
from flagbench.locks.model import canonical
from flagbench.locks.urls import Accounts, index_urls, without_account

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

CAUSE = "wants an account, or refuses the one it was given"
REMEDY = (
    "give an account that may read the index: in the URL of --pip-source or of pip's configuration, or in netrc; "
    "a proxy's account in the URL of the proxy"
)
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
_TIMEOUT = 20.0
"""Seconds for each request."""


def refusals(stack: Stack, environment: Mapping[str, str], ca_bundle: Path | None) -> dict[str, int]:
    """The indexes that refuse every direct requirement of a stack: URL as configured, to HTTP status.

    One refused package says nothing: there are indexes that answer so for a package that they do not have.

    Args:
        environment: uv's, see `sources.uv_environment`.
        ca_bundle: certificates (PEM) to trust instead of the system's.
    """
    if environment.get("UV_NO_INDEX"):
        return {}
    opener = opener_with(Accounts(environment), ca_bundle)
    names = [canonical(line.partition("==")[0].strip()) for line in (*stack.build.packages, *stack.build.optional)]
    names += [canonical(package.name) for package in stack.build.compiled]
    asked = {index: _refusal(opener, index, names) for index in index_urls(environment)}
    return {index: status for index, status in asked.items() if status is not None}


def _refusal(opener: OpenerDirector, index: str, names: Iterable[str]) -> int | None:
    """The HTTP status with which an index refuses all of the packages; None if it does not."""
    status = None
    for name in names:
        status = _status(opener, index, name)
        if status not in _REFUSALS:
            return None
    return status


def _status(opener: OpenerDirector, index: str, name: str) -> int | None:
    """The HTTP status of an index's page of a package; None where there is none."""
    try:
        with opener.open(f"{without_account(index).rstrip('/')}/{name}/", timeout=_TIMEOUT):
            return HTTPStatus.OK
    except HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError, HTTPException):
        return None
