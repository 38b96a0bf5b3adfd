"""One file by its address, with the account of the index that it comes from: whole, or not at all."""

from __future__ import annotations

import ssl
from pathlib import Path
from shutil import copyfileobj
from urllib.parse import unquote, urlsplit
from urllib.request import BaseHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from flagbench.locks.urls import Accounts, without_account

_TIMEOUT = 60.0
"""Seconds without a byte, after which a download is given up."""
_BLOCK = 1 << 20


class CutOff(OSError):
    """The connection ended before the file did."""


def download(url: str, folder: Path, accounts: Accounts, ca_bundle: Path | None) -> Path:
    """The file of an address, put into `folder` under its own name.

    Args:
        url: may hold an account, which is sent and never shown.
        folder: exists.
        accounts: those of the configured indexes.
        ca_bundle: certificates (PEM) to trust instead of the system's.

    Raises:
        OSError, ValueError, http.client.HTTPException: it could not be had; a file cut short is a `CutOff`.
    """
    accounts.learn(url)
    opener = opener_with(accounts, ca_bundle)
    address = without_account(url)
    path = folder / Path(unquote(urlsplit(address).path)).name
    with opener.open(address, timeout=_TIMEOUT) as answer:
        with open(path, "wb") as file:
            copyfileobj(answer, file, _BLOCK)
        # http.client takes the end of a connection for the end of a file that is read in blocks.
        promised = answer.headers.get("Content-Length", "")
    size = path.stat().st_size
    if promised.isdecimal() and size != int(promised):
        raise CutOff(f"the download was cut off after {size} of {promised} bytes")
    return path


def opener_with(accounts: Accounts, ca_bundle: Path | None) -> OpenerDirector:
    """What opens addresses without accounts in them, with the accounts and the certificates (PEM) that are given."""
    context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    return build_opener(HTTPSHandler(context=context), _WithAccount(accounts))


class _WithAccount(BaseHandler):
    """Sends an account where it belongs; each redirection is looked up again, so that no other host is told it."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def http_request(self, request: Request) -> Request:
        header = self._accounts.header(request.full_url)
        if header is not None:
            request.add_unredirected_header("Authorization", header)
        return request

    https_request = http_request
