"""`flagbench push`: an image of the engine into a place, with its bill of materials and its provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flagbench.catalog.model import Stack
from flagbench.engines import Engine
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import TEXT_BYTES, read_file
from flagbench.labels import BASE_LAYERS_LABEL, CREATED_LABEL
from flagbench.oci import provenance
from flagbench.oci.base_layers import base_blobs, base_of
from flagbench.oci.compress import Compression, require
from flagbench.oci.export import CONFIG_TYPE, EngineImage, Layers, epoch_of, export
from flagbench.oci.known import Known, KnownImage
from flagbench.oci.load_back import load_back
from flagbench.oci.manifest import parse_manifest
from flagbench.oci.model import Blob, Descriptor, OciImage, Place
from flagbench.oci.push import NotHere, Pushed, not_here, offered, push
from flagbench.oci.redistribution import require_redistributable
from flagbench.oci.referrers import attach
from flagbench.oci.workspace import workspace

SBOM_TYPE = "application/vnd.cyclonedx+json"


class Report(Protocol):
    """What a user sees of a push."""

    def note(self, text: str) -> None:
        """A line of text."""

    def start(self, total: int) -> None:
        """Bytes are sent from now on, at most `total`."""

    def expect(self, count: int) -> None:
        """Further bytes are to be transferred than `start` was told. Called by several threads."""

    def advance(self, count: int) -> None:
        """Bytes were sent, or, if negative, were sent in vain. Called by several threads."""

    def end(self) -> None:
        """All were sent, or not."""


SbomOf = Callable[[str, str, str], "Path | None"]
"""From an image's name and its id in the engine, before and after it was pushed, to its bill of materials, if any."""


@dataclass(frozen=True)
class Wanted:
    """What is to be pushed, and where."""

    name: str
    """`flagbench/CASE:STACK-VERSION`."""
    aliases: tuple[str, ...]
    """Further names that move, pushed where they mean the same image in the engine."""
    below: str
    """The name of the stack's image."""
    stack: Stack
    place: Place
    sbom_of: SbomOf
    compression: Compression = "gzip"
    may_redistribute: bool = False


@dataclass(frozen=True)
class Published:
    """What was pushed."""

    place: str
    tags: tuple[str, ...]
    digest: str
    """`sha256:<64 hex>` of the manifest."""
    config_digest: str
    blobs: tuple[Pushed, ...]
    referrers: dict[str, str]
    """Digest of the manifest of each document about it, by media type."""
    replaced: str | None = None
    """The id that the engine's image had, where the normalised one was loaded back in its place."""

    @property
    def sent(self) -> int:
        """Bytes of layers and configuration that were uploaded."""
        return sum(each.blob.size for each in self.blobs if each.how == "uploaded")

    @property
    def reference(self) -> str:
        """`HOST/NAME@sha256:...`."""
        return f"{self.place}@{self.digest}"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "place": self.place,
            "tags": list(self.tags),
            "digest": self.digest,
            "config_digest": self.config_digest,
            "bytes_sent": self.sent,
            "blobs": [{"digest": each.blob.digest, "size": each.blob.size, "how": each.how} for each in self.blobs],
            "referrers": self.referrers,
            "replaced": self.replaced,
        }


def publish(wanted: Wanted, engine: Engine, report: Report, known: Known | None = None) -> Published:
    """Push an image; one that was pushed before, and is still there, is not even read from the engine.

    Raises FlagbenchError: (usage) the engine has no such image, or its base may not be redistributed; (data)
    something is damaged; (engine) the engine or the place cannot be reached, or refuses.
    """
    known = known or Known()
    require(wanted.compression)
    image = _inspect(wanted.name, engine)
    tags = _tags(wanted, image, engine)
    base = base_of(image.info.labels)
    if wanted.place.public and base.layers:
        # Layers that are there already, in a private bucket, would be published without being sent.
        require_redistributable(wanted.stack, base, wanted.place, consent=wanted.may_redistribute)
    with workspace() as folder:
        loads_back = engine.names_configurations()
        found, replaced = known.image(image.info.id, wanted.compression), None
        if found is not None and loads_back and found.config_digest != image.info.id:
            found = None  # the normalised image was pushed, and not loaded back
        blobs = _push_known(found, tags, wanted, known, folder) if found else None
        if found is None or blobs is None:
            found, blobs, replaced = _push_new(image, tags, wanted, engine, known, report, folder)
        published = Published(wanted.place.url, tags, found.digest, found.config_digest, tuple(blobs), {}, replaced)
        for image_id in (image.info.id, found.config_digest):
            known.remember_image(image_id, wanted.compression, found, published.reference)
        for each in blobs:
            known.remember_origin(each.blob.digest, wanted.place.url)
        image_id = found.config_digest if loads_back else image.info.id
        return replace(published, referrers=_attach(found, image, image_id, wanted, report, folder))


def _inspect(name: str, engine: Engine) -> EngineImage:
    info = engine.inspect(name)
    if info is None:
        raise FlagbenchError(
            f"the engine has no image {name}",
            remedy=f"build it first: `flagbench build {name.removeprefix('flagbench/').rpartition('-')[0]}`",
        )
    if not _is_count(info.labels.get(BASE_LAYERS_LABEL, "")):
        raise FlagbenchError(
            f"the image {name} does not say which of its layers are its base's",
            remedy="build it again with this version of flagbench: `flagbench build --no-cache`",
        )
    return EngineImage(name, info)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _tags(wanted: Wanted, image: EngineImage, engine: Engine) -> tuple[str, ...]:
    """The fixed tag, then those that move: a name of another image by now is not pushed."""
    found = ((alias, engine.inspect(alias)) for alias in wanted.aliases)
    moving = [alias for alias, info in found if info is not None and info.id == image.info.id]
    return tuple(name.rpartition(":")[2] for name in (wanted.name, *moving))


def _push_known(
    found: KnownImage, tags: Sequence[str], wanted: Wanted, known: Known, folder: Path
) -> list[Pushed] | None:
    """Push what is known of an earlier push; None where the place lacks a layer, whose bytes only the engine has."""
    layers = parse_manifest(found.manifest.encode(), found.media_type, f"of {wanted.name}").layers
    config = folder / "known.json"
    config.write_text(found.config, encoding="utf-8")
    image = OciImage(
        found.manifest.encode(),
        found.media_type,
        Blob(Descriptor(CONFIG_TYPE, found.config_digest, len(found.config.encode())), lambda show: config),
        tuple(Blob(each, not_here, known.origins(each.digest)) for each in layers),
    )
    try:
        return push(image, wanted.place, tags)
    except NotHere:
        return None


def _push_new(
    image: EngineImage,
    tags: Sequence[str],
    wanted: Wanted,
    engine: Engine,
    known: Known,
    report: Report,
    folder: Path,
) -> tuple[KnownImage, list[Pushed], str | None]:
    """Read the image from the engine, push it, and load it back where it was not normal."""
    base, diff_ids, place = base_of(image.info.labels), image.info.layers, wanted.place
    from_registry = base_blobs(base, diff_ids, image.info.platform, known, folder, report.expect)
    layers = Layers(
        wanted.compression,
        epoch_of(image.info, image.name),
        diff_ids[: base.layers],
        diff_ids[base.layers :],
        dict(zip(diff_ids, from_registry, strict=False)),
    )
    if not _has_base(layers, place, known):
        require_redistributable(wanted.stack, base, place, consent=wanted.may_redistribute)
    loads_back = engine.names_configurations()
    images = [image, *(_below(wanted, image, engine) if loads_back else ())]
    ready, exported = export(images, layers, engine, known, folder, partial(offered, place), report.note)
    report.note(f"pushing to {place.url}")
    report.start(sum(blob.descriptor.size for blob in (*ready.layers, ready.config)))
    try:
        blobs = push(ready, place, tags, report.advance)
    except NotHere:
        raise FlagbenchError(
            f"a layer was removed from {place.url} while the image was pushed",
            remedy="push again",
            code=ExitCode.ENGINE,
        ) from None
    finally:
        report.end()
    found = KnownImage(ready.manifest.decode(), ready.media_type, exported[0].config.decode())
    replaced = None
    if loads_back:
        for each in load_back(exported, layers, engine):
            wanted.sbom_of(each.name, each.info.id, each.config_digest)
            report.note(
                f"{each.name} was normalised, once, and loaded back into the engine as {each.config_digest}; "
                f"`docker image prune` removes {each.info.id}"
            )
            replaced = each.info.id if each.name == image.name else replaced
    else:
        report.note(
            "this engine (containerd image store) keeps the image as it was built; pull it to run what was pushed"
        )
    return found, blobs, replaced


def _below(wanted: Wanted, image: EngineImage, engine: Engine) -> list[EngineImage]:
    """The stack's image, where the case's stands on it: they are normalised together and stay on one another."""
    info = engine.inspect(wanted.below)
    if info is None or image.info.layers[: len(info.layers)] != info.layers:
        return []
    return [EngineImage(wanted.below, info)]


def _has_base(layers: Layers, place: Place, known: Known) -> bool:
    """Whether nothing of the base would be sent: the place has it, or copies it from where the base comes from.

    Another repository of the same registry may have it for those alone who may read that one.
    """
    for diff_id in layers.base:
        blob = layers.from_registry.get(diff_id)
        origins = () if blob is None else blob.origins[:1]
        described = blob.descriptor if blob else known.layer(diff_id, layers.compression)
        if described is None or not offered(place, Blob(described, not_here, origins)):
            return False
    return True


def _attach(
    found: KnownImage,
    image: EngineImage,
    image_id: str,
    wanted: Wanted,
    report: Report,
    folder: Path,
) -> dict[str, str]:
    """The bill of materials and the provenance, beside the image; `image_id` is the one that the engine has now."""
    subject = Descriptor(found.media_type, found.digest, len(found.manifest.encode()))
    statement = folder / "provenance.json"
    labels = image.info.labels
    statement.write_bytes(provenance.provenance(wanted.name, found.digest, found.config_digest, labels))
    documents = {provenance.MEDIA_TYPE: statement}
    sbom = wanted.sbom_of(wanted.name, image.info.id, image_id)
    if sbom is None:
        report.note(f"no bill of materials of {wanted.name} is here, and none is pushed; `flagbench build` writes it")
    else:
        copy = folder / "sbom.json"
        copy.write_bytes(read_file(sbom, TEXT_BYTES))
        documents[SBOM_TYPE] = copy
    made = {CREATED_LABEL: labels[CREATED_LABEL]} if labels.get(CREATED_LABEL) else {}
    return attach(wanted.place, subject, documents, made)
