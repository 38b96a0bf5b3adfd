"""The bill of materials of an image: what is installed in it, as CycloneDX's JSON, and its file."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import msgspec

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file, reason, write_atomically
from flagbench.image_reference import parse_reference
from flagbench.images.docker_process import find_docker
from flagbench.images.lockfile import Lock, canonical
from flagbench.images.tags import Tier
from flagbench.user_folders import data_folder
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode

# For Python 3.8 and later, with the standard library alone. It imports no package: it reads the installers' metadata.
_SCRIPT = r"""
import json
import re
from importlib import metadata

def fields(block):
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line and not line[:1].isspace())
    return {key: value.strip() for key, value in pairs}

def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

def debian_licenses(package):
    # The names in a machine-readable copyright file, else the licence texts of Debian that it refers to.
    text = read("/usr/share/doc/%s/copyright" % package)
    named = re.findall(r"^License: *(\S.*)$", text, re.M) if "copyright-format" in text else []
    return sorted({name.strip() for name in named or re.findall(r"/common-licenses/([\w.-]*\w)", text)})

def python_licenses(about):
    # Free text that may be the whole licence, else classifiers.
    given = (about["License"] or "").strip()
    if given and len(given) < 100 and "\n" not in given:
        return [given]
    lines = about.get_all("Classifier") or ()
    return [line.rpartition(" :: ")[2] for line in lines if line.startswith("License ::")]

release = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
blocks = [fields(block) for block in read("/var/lib/dpkg/status").split("\n\n") if block.strip()]
installed = [block for block in blocks if block.get("Status", "").endswith(" installed")]
names = ("Package", "Version", "Architecture", "Source")
found = [dist.metadata for dist in metadata.distributions()]
print(json.dumps({
    "distribution": release.get("ID", "").strip("\"'"),
    "release": release.get("VERSION_ID", "").strip("\"'"),
    "debian": [
        [block.get(name, "") for name in names] + [debian_licenses(block["Package"])] for block in installed
    ],
    "python": [
        [each["Name"], each["Version"] or "", each["License-Expression"] or "", python_licenses(each)]
        for each in found if each["Name"]
    ],
}))
"""
LICENSE = "Apache-2.0"
"""Of flagbench itself."""
_VERSIONED = re.compile(r"(\S+) \((\S+)\)$")
Component = dict[str, Any]


class DebianPackage(NamedTuple):
    """One installed package of the distribution."""

    name: str
    version: str
    architecture: str
    source: str
    """Where the source package has another name or version: `NAME` or `NAME (VERSION)`; else empty."""
    licenses: tuple[str, ...] = ()
    """Names in its copyright file, such as `GPL-2+`."""


class PythonPackage(NamedTuple):
    """One installed Python package."""

    name: str
    version: str
    license: str
    """An SPDX expression, where the package itself gives one; else empty."""
    licenses: tuple[str, ...] = ()
    """Names in its other metadata, such as `MIT License`."""


class Contents(msgspec.Struct):
    """Every package of an image: the answer of the script."""

    distribution: str
    """As /etc/os-release names it, such as `debian`."""
    release: str
    debian: list[DebianPackage]
    python: list[PythonPackage]


def read_contents(image_id: str, interpreter: str) -> Contents:
    """The packages of an image. Raises FlagbenchError (build failed) if its Python does not list them."""
    options = ["--rm", "--pull=never", "--network=none", f"--entrypoint={interpreter}"]
    command = [find_docker(), "run", *options, image_id, "-I", "-B", "-c", _SCRIPT]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    try:
        return msgspec.json.decode(listed.stdout, type=Contents)
    except (msgspec.DecodeError, RecursionError) as error:
        printed = (listed.stderr or listed.stdout)[-200:].decode("utf-8", "replace").strip()
        raise FlagbenchError(
            f"the image {image_id} does not list what is installed in it: {printed}",
            remedy=f"check that {interpreter} runs in it",
            code=ExitCode.BUILD_FAILED,
        ) from error


def sbom_json(image_id: str, tier: Tier, lock: Lock, contents: Contents, indexes: Sequence[str]) -> str:
    """The document, of CycloneDX 1.6; the base, the lock and the context are properties of the image's component.

    Args:
        lock: the stack's.
        indexes: the stack's package indexes beside the default one.
    """
    reference = parse_reference(tier.tags[1])
    properties = {
        "dev.flagbench.base": tier.base.identity,
        "dev.flagbench.base.name": tier.base.name,
        "dev.flagbench.context": tier.digest,
        "dev.flagbench.image": image_id,
        "dev.flagbench.lock": lock.digest,
    }
    subject = {
        "type": "container",
        "name": reference.name,
        "version": reference.tag,
        "bom-ref": image_id,
        "properties": [{"name": name, "value": value} for name, value in properties.items()],
    }
    parts = [*_debian(contents), *_python(contents, lock, indexes)]
    if not tier.heavy:
        parts.append(
            _component("application", "flagbench", __version__, f"pkg:generic/flagbench@{__version__}", LICENSE)
        )
    components = {part["purl"]: part for part in parts}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": _serial_number(image_id),
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "tools": {"components": [{"type": "application", "name": "flagbench", "version": __version__}]},
            "component": subject,
        },
        "components": [components[url] for url in sorted(components)],
        "dependencies": [{"ref": image_id, "dependsOn": sorted(components)}],
    }
    return json.dumps(document, indent=1) + "\n"


def sbom_path(image: str) -> Path:
    """The default file for the image `flagbench/CASE:TAG`: images/CASE/TAG.cdx.json in the user's data folder."""
    reference = parse_reference(image)
    return data_folder() / "images" / Path(reference.path).name / f"{reference.tag}.cdx.json"


def sbom_of(image: str, image_id: str) -> Path | None:
    """The bill of materials of an image in its default file, if it is there and of that id."""
    path = sbom_path(image)
    return path if is_sbom_of(path, image_id) else None


def is_sbom_of(path: Path, image_id: str) -> bool:
    """Whether a file is the bill of materials of that image."""
    try:
        document = json.loads(read_file(path, TEXT_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("serialNumber") == _serial_number(image_id)


def write_sbom(path: Path, document: str) -> None:
    """Write the document, whole or not at all. Raises FlagbenchError (usage)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, document.encode("utf-8"))
    except OSError as error:
        raise FlagbenchError(
            f"the image is built, but its bill of materials was not written to {path}: {reason(error)}",
            remedy="name a file that can be written with --sbom and build again: the image is kept",
        ) from error


def _serial_number(image_id: str) -> str:
    """Of the document of an image, and of no other."""
    return uuid5(NAMESPACE_URL, f"urn:flagbench:image:{image_id}").urn


def _debian(contents: Contents) -> Iterator[Component]:
    distro = f"{contents.distribution}-{contents.release}" if contents.release else contents.distribution
    for name, version, architecture, source, licenses in contents.debian:
        # Vulnerabilities are reported for the source package.
        qualifiers = {"arch": architecture, "distro": distro, "upstream": _VERSIONED.sub(r"\1@\2", source)}
        url = _package_url(f"deb/{contents.distribution}", name, version, qualifiers)
        yield _component("library", name, version, url, named=licenses)


def _python(contents: Contents, lock: Lock, indexes: Sequence[str]) -> Iterator[Component]:
    locked = {(entry.name, entry.version): entry.hashes for entry in (*lock.entries, *lock.unresolved)}
    for name, version, terms, licenses in contents.python:
        pin = canonical(name), version
        hashes = locked.get(pin, ())
        qualifiers = {"repository_url": _repository(version, indexes) if pin in locked else ""}
        url = _package_url("pypi", name.replace("_", "-").lower(), version, qualifiers)
        # Which of several files was installed is not known.
        yield _component("library", name, version, url, terms, hashes if len(hashes) == 1 else (), licenses)


def _repository(version: str, indexes: Sequence[str]) -> str:
    """The index that a version comes from; empty for the default one, which has no local versions (`+cu118`)."""
    _, plus, local = version.partition("+")
    if not plus or not indexes:
        return ""
    return next((url for url in indexes if url.rstrip("/").endswith(f"/{local}")), indexes[0])


def _package_url(kind: str, name: str, version: str, qualifiers: dict[str, str]) -> str:
    """As github.com/package-url/purl-spec has it; qualifiers in the order of their names, empty ones left out."""
    given = "&".join(f"{key}={quote(value, '/:')}" for key, value in qualifiers.items() if value)
    return f"pkg:{kind}/{quote(name, ':')}@{quote(version, ':')}{'?' if given else ''}{given}"


def _component(
    kind: str,
    name: str,
    version: str,
    url: str,
    terms: str = "",
    hashes: Sequence[str] = (),
    named: Sequence[str] = (),
) -> Component:
    """A package; `hashes` are `sha256:<64 hex>` of its file.

    `terms` is the SPDX expression that it gives itself; else `named` are the names of its licences.
    """
    found: Component = {"type": kind, "bom-ref": url, "name": name, "version": version, "purl": url}
    if terms or named:
        found["licenses"] = [{"expression": terms}] if terms else [{"license": {"name": each}} for each in named]
    if hashes:
        found["hashes"] = [{"alg": "SHA-256", "content": each.removeprefix("sha256:")} for each in hashes]
    return found
