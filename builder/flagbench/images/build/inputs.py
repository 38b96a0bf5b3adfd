"""What a build gets besides its rendered files, mounted only while a step installs packages.

The names are those that images/files/install.sh looks for.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file, reason
from flagbench.images.build.options import BuildOptions
from flagbench.images.locks.model import Lock
from flagbench.images.locks.wheelhouse import check_wheelhouse
from flagbench_core.redaction import url_secrets

PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")

Inputs = Mapping[str, Path | bytes]


def make_inputs(options: BuildOptions, lock: Lock) -> Inputs:
    """The build's inputs by their path under `inputs/`, each checked.

    Raises FlagbenchError (usage) for a file of another kind than its option names, or a wheelhouse that lacks
    something the lock names.
    """
    inputs: dict[str, Path | bytes] = {}
    if options.ca_bundle is not None:
        inputs["ca.crt"] = _certificates(options.ca_bundle)
    if options.pip_source:
        inputs["pip.conf"] = pip_configuration(options.pip_source)
    if isinstance(options.apt_source, Path):
        inputs["apt/sources.list"] = _sources_list(options.apt_source)
    elif options.apt_source is not None:
        inputs["apt/url"] = options.apt_source.encode()
    if options.wheelhouse is not None:
        for path in check_wheelhouse(options.wheelhouse, lock):
            inputs[f"wheels/{path.name}"] = path
    return inputs


def pip_configuration(sources: tuple[str, ...]) -> bytes:
    """The text of a pip.conf that takes packages from `sources`, the first as the main index."""
    first, *more = sources
    lines = ["[global]", f"index-url = {first}"]
    if more:
        lines += ["extra-index-url =", *(f"    {url}" for url in more)]
    # pip refuses an index without https unless it is told to trust the host.
    plain = {urlsplit(url).netloc.rpartition("@")[2] for url in sources if urlsplit(url).scheme == "http"}
    if plain:
        lines += ["trusted-host =", *(f"    {host}" for host in sorted(plain))]
    return ("\n".join(lines) + "\n").encode()


def secrets(options: BuildOptions, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The credentials in the URLs of the options and the proxies, which must not be shown; longest first."""
    urls = [*options.pip_source]
    if isinstance(options.apt_source, str):
        urls.append(options.apt_source)
    elif options.apt_source is not None:
        with suppress(OSError):  # `make_inputs` reports it
            urls += read_file(options.apt_source, TEXT_BYTES).decode("utf-8", "replace").split()
    urls += [value for name, value in environment.items() if name.lower() in PROXIES]
    found = {secret for url in urls for secret in url_secrets(url)}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _certificates(path: Path) -> bytes:
    """The content of a bundle of certificates (PEM).

    Raises FlagbenchError (usage) for a file that cannot be read, holds no certificates, or holds a private key.
    """
    remedy = "name a file of certificates in PEM form, such as /etc/ssl/certs/ca-certificates.crt"
    try:
        content = read_file(path, TEXT_BYTES)
    except OSError as error:
        raise FlagbenchError(f"--ca-bundle {path} cannot be read: {reason(error)}", remedy=remedy) from error
    if b"PRIVATE KEY-----" in content:
        raise FlagbenchError(f"--ca-bundle {path} holds a private key, which nothing here needs", remedy=remedy)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise FlagbenchError(f"--ca-bundle {path} holds no certificates that can be read", remedy=remedy) from error
    return content


def _sources_list(path: Path) -> bytes:
    try:
        return read_file(path, TEXT_BYTES)
    except OSError as error:
        raise FlagbenchError(
            f"--apt-source {path} cannot be read: {reason(error)}", remedy="make the file readable for you"
        ) from error
