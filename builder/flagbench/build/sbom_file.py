"""The file of a bill of materials: which image it is of, and writing it whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file


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
