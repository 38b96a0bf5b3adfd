"""The bill of materials of an image, in CycloneDX's JSON: the same bytes for the same image at any time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.spdx import is_expression
from packageurl import PackageURL

from flagbench._version import __version__
from flagbench.build.contents import Contents, Package
from flagbench.build.results import ImageResult
from flagbench.build.sbom_file import serial_number
from flagbench.images import parse_reference
from flagbench.locks.model import Lock, canonical

LICENSE = "Apache-2.0"
"""Of flagbench itself."""
_VERSIONED = re.compile(r"(\S+) \((\S+)\)$")


def sbom_json(image: ImageResult, contents: Contents, indexes: Sequence[str], epoch: int) -> str:
    """The document, of CycloneDX 1.6.

    Its serial number comes from the image's id and its time is the image's, so that it does not depend on when it
    was written. The base, the lock and the context are properties of the image's component.

    Args:
        indexes: the stack's package indexes beside the default one.
    """
    reference = parse_reference(image.top.tags[1])
    subject = Component(
        type=ComponentType.CONTAINER,
        name=reference.name,
        version=reference.tag,
        bom_ref=image.top.image_id,
        properties=[
            Property(name="dev.flagbench.base", value=image.base.identity),
            Property(name="dev.flagbench.base.name", value=image.base.name),
            Property(name="dev.flagbench.context", value=image.top.digest),
            Property(name="dev.flagbench.image", value=image.top.image_id),
            Property(name="dev.flagbench.lock", value=image.lock.digest),
        ],
    )
    tool = Component(type=ComponentType.APPLICATION, name="flagbench", version=__version__, bom_ref="tool:flagbench")
    components = [*_debian(contents), *_python(contents, image.lock, indexes)]
    if image.below is not None:
        components.append(_component(Package("flagbench", __version__, license=LICENSE), "generic", None, {}))
    bom = Bom(
        serial_number=serial_number(image.top.image_id),
        metadata=BomMetaData(
            component=subject,
            tools=ToolRepository(components=[tool]),
            timestamp=datetime.fromtimestamp(epoch, timezone.utc),
        ),
        components=components,
    )
    bom.register_dependency(subject, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def _debian(contents: Contents) -> Iterator[Component]:
    distro = f"{contents.distribution}-{contents.release}" if contents.release else contents.distribution
    for package in contents.debian:
        qualifiers = {"arch": package.architecture, "distro": distro}
        if package.source:
            # What vulnerabilities are reported for.
            versioned = _VERSIONED.match(package.source)
            qualifiers["upstream"] = f"{versioned[1]}@{versioned[2]}" if versioned else package.source
        yield _component(package, "deb", contents.distribution, qualifiers)


def _python(contents: Contents, lock: Lock, indexes: Sequence[str]) -> Iterator[Component]:
    locked = {(entry.name, entry.version): entry.hashes for entry in (*lock.entries, *lock.unresolved)}
    for package in contents.python:
        pin = canonical(package.name), package.version
        hashes = locked.get(pin, ())
        # Which of several files was installed is not known.
        sha256 = hashes[0] if len(hashes) == 1 else None
        repository = _repository(package.version, indexes) if pin in locked else None
        yield _component(package, "pypi", None, {"repository_url": repository} if repository else {}, sha256)


def _repository(version: str, indexes: Sequence[str]) -> str | None:
    """The index that a version comes from, where it is not the default one: that has no local versions (`+cu118`)."""
    _, plus, local = version.partition("+")
    if not plus or not indexes:
        return None
    return next((url for url in indexes if url.rstrip("/").endswith(f"/{local}")), indexes[0])


def _component(
    package: Package, kind: str, namespace: str | None, qualifiers: Mapping[str, str], sha256: str | None = None
) -> Component:
    url = PackageURL(kind, namespace or None, package.name, package.version, dict(qualifiers))
    digest = None if sha256 is None else sha256.removeprefix("sha256:")
    return Component(
        type=ComponentType.APPLICATION if kind == "generic" else ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=url.to_string(),
        purl=url,
        licenses=_licenses(package),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
    )


def _licenses(package: Package) -> list[License]:
    """The licence that the package gives, as an expression where it is one."""
    if not package.license:
        return []
    if is_expression(package.license):
        return [LicenseExpression(package.license)]
    return [DisjunctiveLicense(name=package.license)]
