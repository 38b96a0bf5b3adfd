"""What is put into any place: an image, documents about it; and which layers are never put there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Redistribution
from flagbench.cli import main
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci import publish
from flagbench.oci.base_layers import BaseImage, base_of
from flagbench.oci.export import Layers
from flagbench.oci.known import Known
from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, OciImage, digest_of
from flagbench.oci.provenance import provenance
from flagbench.oci.push import NotHere, not_here, offered, push
from flagbench.oci.redistribution import require_redistributable
from flagbench.oci.referrers import OCI_INDEX, attach
from places import MemoryPlace

DIGEST = "sha256:" + "d" * 64
SUBJECT = Descriptor(OCI_MANIFEST, DIGEST, 7)


def blob(folder: Path, content: bytes) -> Blob:
    """A blob in a file."""
    path = folder / digest_of(content)[7:19]
    path.write_bytes(content)
    return Blob(Descriptor("application/x", digest_of(content), len(content)), lambda show: path)


def image(folder: Path) -> OciImage:
    """Three layers, of which two are the same."""
    layers = tuple(blob(folder, content) for content in (b"one", b"two", b"one"))
    return OciImage(b'{"manifest": 1}', OCI_MANIFEST, blob(folder, b"{}"), layers)


def test_a_layer_that_is_there_is_not_sent_again(tmp_path: Path) -> None:
    place, sent = MemoryPlace(), []
    first = push(image(tmp_path), place, ["1", "latest"], sent.append)
    assert [each.how for each in first] == ["uploaded"] * 3
    assert sum(sent) == 8
    assert place.manifests["latest"] == place.manifests[image(tmp_path).digest]
    assert {each.how for each in push(image(tmp_path), place, ["1"])} == {"present"}


def test_the_manifest_comes_last(tmp_path: Path) -> None:
    place = MemoryPlace()
    broken = image(tmp_path)
    broken = replace(broken, layers=(*broken.layers, replace(broken.config, path=not_here, descriptor=SUBJECT)))
    with pytest.raises(NotHere):
        push(broken, place, ["1"])
    assert place.manifests == {}


def test_a_layer_is_offered_without_its_bytes(tmp_path: Path) -> None:
    place, other = MemoryPlace("r.example/a"), MemoryPlace("r.example/b")
    place.others = {"r.example/b": other}
    layer = blob(tmp_path, b"layer")
    assert not offered(place, layer)
    other.blobs[layer.descriptor.digest] = b"layer"
    assert not offered(place, layer)
    assert offered(place, replace(layer, origins=("r.example/b",)))
    assert place.has_blob(layer.descriptor.digest)


@pytest.mark.parametrize("lists", [True, False])
def test_documents_are_found_from_the_image(lists: bool, tmp_path: Path) -> None:
    place = MemoryPlace(lists=lists)
    document = tmp_path / "sbom.json"
    document.write_text("{}\n")
    made = [attach(place, SUBJECT, {"application/x-sbom": document}, {"a": "b"})["application/x-sbom"] for _ in "ab"]
    assert made[0] == made[1]
    manifest = json.loads(place.manifests[made[0]][0])
    assert manifest["subject"]["digest"] == DIGEST
    assert manifest["artifactType"] == "application/x-sbom"
    assert all(place.has_blob(each["digest"]) for each in (manifest["config"], *manifest["layers"]))
    tag = "sha256-" + "d" * 64
    if lists:
        assert tag not in place.manifests
        return
    document.write_text("{ }\n")
    second = attach(place, SUBJECT, {"application/x-sbom": document}, {})["application/x-sbom"]
    content, media_type = place.manifests[tag]
    assert media_type == OCI_INDEX
    assert [entry["digest"] for entry in json.loads(content)["manifests"]] == [made[0], second]
    assert json.loads(content)["manifests"][0]["artifactType"] == "application/x-sbom"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"manifests": 3}', b'{"manifests": [3]}'])
def test_a_damaged_list_is_begun_anew(content: bytes, tmp_path: Path) -> None:
    place, document, tag = MemoryPlace(), tmp_path / "sbom.json", "sha256-" + "d" * 64
    document.write_text("{}\n")
    place.manifests[tag] = content, OCI_INDEX
    attach(place, SUBJECT, {"application/x-sbom": document}, {})
    assert len(json.loads(place.manifests[tag][0])["manifests"]) == 1


def send(status: str, name: str | None = None, *, digest: str | None = DIGEST, consent: bool = False) -> None:
    """As if the layers of a base were to be sent, by default the stack's own."""
    terms = Redistribution(status, "because of its licence", "https://vendor.example/licence")  # type: ignore[arg-type]
    stack = replace(load_catalog(claims=False).stacks["cpu"], base_redistribution=terms)
    require_redistributable(
        stack, BaseImage(name or str(stack.base_image), digest, 1), MemoryPlace("r.example/x"), consent=consent
    )


@pytest.mark.parametrize(
    ("status", "name", "digest"),
    [
        ("restricted", None, DIGEST),
        ("restricted", None, None),
        ("unknown", None, DIGEST),
        ("allowed", "other.example/base:1", DIGEST),  # its licence is not that of the stack's base
    ],
)
def test_a_base_that_may_not_be_redistributed_is_refused(status: str, name: str | None, digest: str | None) -> None:
    with pytest.raises(FlagbenchError) as caught:
        send(status, name, digest=digest)
    assert caught.value.code is ExitCode.USAGE
    assert "r.example/x" in caught.value.message
    assert "--i-may-redistribute" in caught.value.remedy
    assert (DIGEST in caught.value.remedy) is (digest is not None), "where others get it"
    send(status, name, digest=digest, consent=True)


def test_a_base_that_everybody_may_redistribute_is_sent() -> None:
    send("allowed")


def test_every_stack_says_whether_its_base_may_be_redistributed() -> None:
    stacks = load_catalog(claims=False).stacks.values()
    assert {stack.name for stack in stacks if stack.base_redistribution.status == "allowed"} == {"cpu"}
    assert all(stack.base_redistribution.source for stack in stacks if stack.base_redistribution.status != "unknown")


@pytest.mark.parametrize("to", ["someone", "docker.io/someone", "index.docker.io/x", "registry-1.docker.io/x"])
def test_docker_hub_has_no_place_for_an_image(to: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["push", "distilbert:cpu", "--to", to]) == ExitCode.USAGE
    assert "Docker Hub" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "x", "-1", "²"])
def test_labels_of_a_base_that_are_none(value: str) -> None:
    labels = {"dev.flagbench.base.layers": value, "org.opencontainers.image.base.digest": value}
    assert base_of(labels) == BaseImage("", None, 0)


def test_the_provenance_says_what_went_in() -> None:
    labels = {
        "dev.flagbench.context": "sha256:" + "1" * 64,
        "dev.flagbench.lock": "sha256:" + "2" * 64,
        "dev.flagbench.base": "sha256:" + "3" * 64,
        "org.opencontainers.image.base.name": "debian:bookworm-slim",
        "org.opencontainers.image.revision": "4" * 40 + "-dirty",
    }
    made = json.loads(provenance("flagbench/a:1", DIGEST, "sha256:" + "5" * 64, labels))
    assert made["subject"] == [{"name": "flagbench/a:1", "digest": {"sha256": "d" * 64}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["internalParameters"]["contextDigest"] == "sha256:" + "1" * 64
    digests = {each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    assert digests == {
        "base": {"sha256": "3" * 64},
        "lock": {"sha256": "2" * 64},
        "flagbench": {"gitCommit": "4" * 40},
    }
    base = definition["resolvedDependencies"][0]
    assert "uri" not in base, "its digest is not that of a manifest"
    labels["org.opencontainers.image.base.digest"] = "sha256:" + "6" * 64
    made = json.loads(provenance("flagbench/a:1", DIGEST, "sha256:" + "5" * 64, labels))
    base = made["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert (base["uri"], base["digest"]) == ("docker-image://debian:bookworm-slim", {"sha256": "6" * 64})
    bare = json.loads(provenance("flagbench/a:1", DIGEST, DIGEST, {}))
    assert bare["predicate"]["buildDefinition"]["resolvedDependencies"] == []


def test_the_base_is_not_taken_from_another_repository_than_its_own(tmp_path: Path) -> None:
    """A private repository of the same registry may have it, with consent; that is no consent for a public one."""
    base, place, private, own = blob(tmp_path, b"base"), MemoryPlace(), MemoryPlace(), MemoryPlace()
    digest = base.descriptor.digest
    place.others = {"private": private, "own": own}
    private.blobs[digest] = b"base"
    layers = Layers("gzip", 0, (DIGEST,), (), {DIGEST: replace(base, origins=("own", "private"))})
    assert not publish._has_base(layers, place, Known())
    assert place.blobs == {}
    own.blobs[digest] = b"base"
    assert publish._has_base(layers, place, Known())
