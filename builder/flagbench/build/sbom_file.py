"""The file of a bill of materials: where it is, which image it is of, and writing it atomically."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from platformdirs import user_data_path

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file, reason, write_atomically
from flagbench.images import parse_reference


def sbom_path(image: str) -> Path:
    """The default file for the image `flagbench/CASE:TAG`: images/CASE/TAG.cdx.json in the user's data folder."""
    reference = parse_reference(image)
    return user_data_path("flagbench") / "images" / Path(reference.path).name / f"{reference.tag}.cdx.json"


def serial_number(image_id: str) -> UUID:
    """The serial number of an image's document."""
    return uuid5(NAMESPACE_URL, f"urn:flagbench:image:{image_id}")


def is_sbom_of(path: Path, image_id: str) -> bool:
    """Whether a file is the bill of materials of that image."""
    try:
        document = json.loads(read_file(path, TEXT_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("serialNumber") == serial_number(image_id).urn


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


def sbom_of(image: str, before: str, image_id: str) -> Path | None:
    """The bill of materials of an image in its default file, if it has one.

    One of the id `before`, which the same image had before it was normalised, becomes that of `image_id`. Raises
    FlagbenchError (usage) where it cannot be written.
    """
    path = sbom_path(image)
    if before != image_id and is_sbom_of(path, before):
        text = read_file(path, TEXT_BYTES).decode("utf-8")
        text = text.replace(serial_number(before).urn, serial_number(image_id).urn).replace(before, image_id)
        write_sbom(path, text)
    return path if is_sbom_of(path, image_id) else None
