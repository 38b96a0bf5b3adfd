"""The options of `flagbench build`, checked, and the input files that they add to a build.

Input files are certificates, pip's and apt's configuration, and a folder of wheels. They are mounted only while a
step of the build installs packages, under the names that images/files/install.sh looks for, and do not stay in the
image.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.image_reference import try_parse_reference
from flagbench.images.lockfile import Lock
from flagbench.system.files import TEXT_BYTES, read_file, reason
from flagbench_core.redaction import url_secrets
from flagbench_core.s3.transfers import sha256_of

_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")
"""Characters that a URL must not have: quotes, and those that RFC 3986 allows only percent-encoded. In pip.conf, in a
list of apt's sources or in the shell script that reads inputs/apt/url, they could end a line, a word or a string."""
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
"""The names, in lower case, of environment variables with the URL of a proxy."""
_MAX_NAMED_PACKAGES = 8
"""Most packages that an error names: about two lines of a terminal."""


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build; only `base` and `source_url` change the image.

    Raises FlagbenchError (USAGE) for an invalid value; the content of files is checked by `make_inputs`.
    """

    base: str | None = None
    """The reference of an image, or the id of a local one, that replaces the lock's base."""
    pip_source: tuple[str, ...] = ()
    """URLs of package indexes, which may contain credentials. The first replaces the default index, the others
    replace the stack's further ones."""
    apt_source: str | None = None
    """The URL of a mirror of the distribution, or the path of a file with lines for sources.list, that replaces the
    base's own sources."""
    ca_bundle: Path | None = None
    """A file with the certificates (PEM) by which downloads are verified."""
    wheelhouse: Path | None = None
    """A folder of wheels and source archives to install from, instead of any index."""
    no_cache: bool = False
    """Whether to run every step again."""
    allow_unlocked: bool = False
    """Whether to build although the stack's lock leaves something unresolved."""
    source_url: str | None = None
    """URL of the code that images are built from, for their label; the option `--source`."""

    def __post_init__(self) -> None:
        # An image's id, or the beginning of one, has the form of a reference, too.
        if self.base is not None and try_parse_reference(self.base) is None:
            remedy = "write a name like registry.example/base:1, or an image's id"
            raise FlagbenchError(f"--base: {self.base!r} is not an image reference", remedy=remedy)
        for url in self.pip_source:
            _require_url(url, "--pip-source")
        if self.apt_file is not None and not self.apt_file.is_file():
            remedy = "name a file of sources lines, or the URL of a mirror"
            raise FlagbenchError(f"--apt-source: there is no file {self.apt_source!r}", remedy=remedy)
        if self.apt_source is not None and self.apt_file is None:
            _require_url(self.apt_source, "--apt-source")
        if self.source_url is not None:
            _require_url(self.source_url, "--source")
            if url_secrets(self.source_url):
                remedy = "leave them out: everyone who has the image can read the label"
                raise FlagbenchError("--source has credentials in it", remedy=remedy)

    @property
    def apt_file(self) -> Path | None:
        """The file that `apt_source` names; None if it is a URL or not set."""
        if self.apt_source is None or "://" in self.apt_source:
            return None
        return Path(self.apt_source)


def _require_url(url: str, option: str) -> None:
    """Check that an option is a URL that is safe in a line of a configuration file.

    Raises FlagbenchError (USAGE) if not. The URL may contain credentials, so the message does not repeat it.
    """
    if not _is_safe_url(url):
        raise FlagbenchError(
            f"{option} is not an http or https URL",
            remedy="write it like https://mirror.example/simple; percent-encode special characters",
        )


def _is_safe_url(url: str) -> bool:
    """Whether a text is an http or https URL with a host and without unsafe characters."""
    if not url.isascii() or not url.isprintable() or _UNSAFE.search(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a malformed host or port
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def make_inputs(options: BuildOptions, lock: Lock) -> Mapping[str, Path | bytes]:
    """Read and check the input files that the options name; content or its file, by path under `inputs/`.

    Raises FlagbenchError (USAGE) if a file is not of the kind that its option needs, or if the wheelhouse lacks a
    package of the lock.
    """
    inputs: dict[str, Path | bytes] = {}
    if options.ca_bundle is not None:
        inputs["ca.crt"] = _read(options.ca_bundle, "--ca-bundle")
        # From the file, as pip does: text for `cadata` may have neither trusted certificates nor comments that are
        # not ASCII.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=options.ca_bundle)
        except ssl.SSLError:
            raise FlagbenchError(
                f"--ca-bundle {options.ca_bundle} holds no certificates",
                remedy="name a file of certificates in PEM form, such as /etc/ssl/certs/ca-certificates.crt",
            ) from None
    if options.pip_source:
        inputs["pip.conf"] = pip_configuration(options.pip_source)
    if options.apt_file is not None:
        inputs["apt/sources.list"] = _read(options.apt_file, "--apt-source")
    elif options.apt_source is not None:
        inputs["apt/url"] = options.apt_source.encode()
    if options.wheelhouse is not None:
        for path in select_package_files(options.wheelhouse, lock):
            inputs[f"wheels/{path.name}"] = path
    return inputs


def pip_configuration(sources: tuple[str, ...]) -> bytes:
    """Write a pip.conf with the indexes `sources`, at least one; the first is the main index."""
    main_index, *further_indexes = sources
    lines = ["[global]", f"index-url = {main_index}"]
    if further_indexes:
        lines.append("extra-index-url =")
        lines += [f"    {url}" for url in further_indexes]
    http_hosts = set()
    for url in sources:
        parts = urlsplit(url)
        if parts.scheme == "http":
            http_hosts.add(parts.netloc.rpartition("@")[2])
    if http_hosts:  # pip refuses an index without https unless its host is trusted.
        lines.append("trusted-host =")
        lines += [f"    {host}" for host in sorted(http_hosts)]
    return ("\n".join(lines) + "\n").encode()


def credentials_of(options: BuildOptions, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Collect the credentials in the URLs of the options and of the proxies in `environment`.

    They must not be shown. The longest is first, so that one which contains another is replaced as a whole.
    """
    urls = [*options.pip_source]
    if options.apt_file is not None:
        with suppress(OSError):  # `make_inputs` reports a file that cannot be read.
            text = read_file(options.apt_file, TEXT_BYTES).decode("utf-8", "replace")
            urls += text.split()
    elif options.apt_source is not None:
        urls.append(options.apt_source)
    urls += [value for name, value in environment.items() if name.lower() in _PROXIES]
    credentials: set[str] = set()
    for url in urls:
        credentials.update(url_secrets(url))
    return tuple(sorted(credentials, key=lambda secret: (-len(secret), secret)))


def _read(path: Path, option: str) -> bytes:
    """Read a file that an option names. Raises FlagbenchError (USAGE) if it cannot be read."""
    try:
        return read_file(path, TEXT_BYTES)
    except OSError as error:
        raise FlagbenchError(
            f"{option} {path} cannot be read: {reason(error)}", remedy="name a file that exists and is readable"
        ) from error


def select_package_files(folder: Path, lock: Lock) -> tuple[Path, ...]:
    """Select the files of the lock's packages from a folder of wheels and source archives; the result is sorted.

    A locked package needs a file with one of the locked hashes. The hashes of an unresolved package are not known, so
    every file of its name and version is selected.

    Raises FlagbenchError (USAGE) if the folder does not exist or cannot be read, or lacks a package.
    """
    if not folder.is_dir():
        raise FlagbenchError(
            f"the wheelhouse {folder} is not a folder", remedy="name a folder of wheels and source archives"
        )
    selected: list[Path] = []
    missing: list[str] = []
    try:
        files = _package_files(folder)
        for entry in (*lock.entries, *lock.unresolved):
            matching = files.get((entry.name, Version(entry.version)), [])
            if entry.hashes:
                matching = [path for path in matching if f"sha256:{sha256_of(path)}" in entry.hashes]
            selected += matching
            if not matching:
                missing.append(entry.pin)
    except OSError as error:
        raise FlagbenchError(
            f"the wheelhouse {folder} cannot be read: {reason(error)}", remedy="check its permissions"
        ) from error
    if missing:
        more = ""
        if len(missing) > _MAX_NAMED_PACKAGES:
            more = f" and {len(missing) - _MAX_NAMED_PACKAGES} more"
        raise FlagbenchError(
            f"the wheelhouse {folder} lacks files that match the lock of {lock.stack} for "
            f"{', '.join(missing[:_MAX_NAMED_PACKAGES])}{more}",
            remedy="fill it with `pip download`; docs/build-images.md shows how",
        )
    return tuple(sorted(selected))


def _package_files(folder: Path) -> dict[tuple[str, Version], list[Path]]:
    """Find the wheels and source archives of a folder, by canonical name and version. Raises OSError."""
    files: dict[tuple[str, Version], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        with suppress(InvalidWheelFilename, InvalidSdistFilename):  # The folder may have other files, too.
            if path.suffix == ".whl":
                name, version, _, _ = parse_wheel_filename(path.name)
            else:
                name, version = parse_sdist_filename(path.name)
            files.setdefault((name, version), []).append(path)
    return files
