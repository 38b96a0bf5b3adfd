"""The bill of materials of an image, in CycloneDX's JSON: the same bytes for the same image at any time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from flagbench.build.contents import Contents
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
        components.append(_component("flagbench", PackageURL("generic", None, "flagbench", __version__), LICENSE))
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
    for name, version, architecture, source in contents.debian:
        # Vulnerabilities are reported for the source package.
        qualifiers = {"arch": architecture, "distro": distro, "upstream": _VERSIONED.sub(r"\1@\2", source)}
        yield _component(name, PackageURL("deb", contents.distribution, name, version, qualifiers))


def _python(contents: Contents, lock: Lock, indexes: Sequence[str]) -> Iterator[Component]:
    locked = {(entry.name, entry.version): entry.hashes for entry in (*lock.entries, *lock.unresolved)}
    for name, version, terms in contents.python:
        pin = canonical(name), version
        hashes = locked.get(pin, ())
        repository = _repository(version, indexes) if pin in locked else ""
        url = PackageURL("pypi", None, name, version, {"repository_url": repository})
        # Which of several files was installed is not known.
        yield _component(name, url, terms, hashes if len(hashes) == 1 else ())


def _repository(version: str, indexes: Sequence[str]) -> str:
    """The index that a version comes from; empty for the default one, which has no local versions (`+cu118`)."""
    _, plus, local = version.partition("+")
    if not plus or not indexes:
        return ""
    return next((url for url in indexes if url.rstrip("/").endswith(f"/{local}")), indexes[0])


def _component(name: str, url: PackageURL, terms: str = "", hashes: Sequence[str] = ()) -> Component:
    """A package; `terms` is the licence that it gives itself, `hashes` are `sha256:<64 hex>` of its file."""
    licenses: list[License] = []
    if terms:
        licenses = [LicenseExpression(terms) if is_expression(terms) else DisjunctiveLicense(name=terms)]
    return Component(
        type=ComponentType.APPLICATION if url.type == "generic" else ComponentType.LIBRARY,
        name=name,
        version=url.version,
        bom_ref=url.to_string(),
        purl=url,
        licenses=licenses,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:")) for digest in hashes],
    )
