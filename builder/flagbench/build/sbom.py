"""The bill of materials of an image, in CycloneDX's JSON: the same bytes for the same image at any time."""

from __future__ import annotations

import json
import os
import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from flagbench._version import __version__
from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from flagbench.build.contents import Contents, Package
    from flagbench.build.result import ImageResult


def sbom_json(image: ImageResult, contents: Contents, epoch: int) -> str:
    """The document, of CycloneDX 1.6.

    Its serial number comes from the image's id and its time is the image's, so that it says nothing of when it
    was written. The base, the lock and the context are properties of the image's component.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    name, _, version = image.top.tags[1].partition(":")
    subject = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=version,
        bom_ref=image.top.image_id,
        properties=[
            Property(name="dev.flagbench.base", value=image.base.identity),
            Property(name="dev.flagbench.base.name", value=image.base.name),
            Property(name="dev.flagbench.context", value=image.top.digest),
            Property(name="dev.flagbench.image", value=image.top.image_id),
            Property(name="dev.flagbench.lock", value=image.lock),
        ],
    )
    tool = Component(type=ComponentType.APPLICATION, name="flagbench", version=__version__, bom_ref="flagbench")
    bom = Bom(
        serial_number=serial_number(image.top.image_id),
        metadata=BomMetaData(
            component=subject,
            tools=ToolRepository(components=[tool]),
            timestamp=datetime.fromtimestamp(epoch, timezone.utc),
        ),
        components=_components(contents),
    )
    bom.register_dependency(subject, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def serial_number(image_id: str) -> UUID:
    """The serial number of an image's document."""
    return uuid5(NAMESPACE_URL, f"urn:flagbench:image:{image_id}")


def is_sbom_of(path: Path, image_id: str) -> bool:
    """Whether a file is the bill of materials of that image."""
    try:
        document = json.loads(read_file(path, TEXT_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("serialNumber") == serial_number(image_id).urn


def write_sbom(path: Path, document: str) -> None:
    """Write the document, whole or not at all. Raises FlagbenchError (usage)."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("x", encoding="utf-8") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise FlagbenchError(
            f"the image is built, but its bill of materials was not written to {path}: {error.strerror}",
            remedy="name a file that can be written with --sbom and build again: the image is kept",
        ) from error


def _components(contents: Contents) -> list[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    release = f"{contents.distribution}-{contents.release}" if contents.release else contents.distribution
    debian = [
        (
            package,
            PackageURL("deb", contents.distribution or None, package.name, package.version, _arch(package, release)),
        )
        for package in contents.debian
    ]
    python = [(package, PackageURL("pypi", None, package.name, package.version)) for package in contents.python]
    return [
        Component(
            type=ComponentType.LIBRARY,
            name=package.name,
            version=package.version,
            bom_ref=url.to_string(),
            purl=url,
            licenses=_licenses(package),
        )
        for package, url in debian + python
    ]


def _arch(package: Package, release: str) -> dict[str, str]:
    return {"arch": package.architecture, "distro": release}


def _licenses(package: Package) -> list[License]:
    """The licence that the package gives, as an expression where it is one."""
    if not package.license:
        return []
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.spdx import is_expression

    if is_expression(package.license):
        return [LicenseExpression(package.license)]
    return [DisjunctiveLicense(name=package.license)]
