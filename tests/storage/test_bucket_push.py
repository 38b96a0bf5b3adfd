"""`flagbench push` of built images into a bucket, and back into the engine: one image id everywhere."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.build.tiers import VERSION
from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Redistribution
from flagbench.cli import main
from flagbench.engines import Engine
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.bucket import BucketPlace
from flagbench.oci.bucket_address import parse_bucket_image, parse_image_bucket
from flagbench.oci.known import Known
from flagbench.oci.progress import TransferProgress
from flagbench.oci.pull import pull
from flagbench.oci.referrers import referrers_tag
from registries import Bench, files_of, own_stack

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.s3, pytest.mark.docker]

SBOM = "application/vnd.cyclonedx+json"
OpenPlace = Callable[..., BucketPlace]


@pytest.fixture
def bench(
    server: Any, docker_client: Any, docker_engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Bench]:
    """Images under names of this test's own, removed at the end; no registry."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Bench(docker_engine, docker_client, None)  # type: ignore[arg-type]
    yield made
    made.remove(*docker_client.api.images(filters={"label": f"dev.flagbench.test={made.name}"}, quiet=True))


@pytest.fixture
def place(bench: Bench, bucket: str) -> OpenPlace:
    """A repository of the bucket, public or not."""

    def open_named(case: str, **options: bool) -> BucketPlace:
        return BucketPlace(parse_image_bucket(f"s3://{bucket}"), f"{bench.name}/{case}", **options)

    return open_named


def build(bench: Bench, image: str, own: bytes) -> str:
    """An image without a base; the lower layer is the same for all."""
    dockerfile = "FROM scratch\nCOPY shared /shared\nCOPY own /own\n"
    return bench.build(image, dockerfile, 0, {"shared": b"the stack\n" * 10_000, "own": own})


def test_a_built_image_goes_through_a_bucket(bench: Bench, place: OpenPlace, bucket: str, tmp_path: Path) -> None:
    image = build(bench, "case:1", os.urandom(1000))
    sbom = tmp_path / "sbom.json"
    sbom.write_text("{}")
    pushed = bench.push(image, place("case"), sbom_of=lambda name, before, now: sbom)
    here = bench.engine.inspect(image)
    assert here is not None
    assert here.id == pushed.config_digest
    files = files_of(bench.engine, image)

    index = place("case").read_manifest(referrers_tag(pushed.digest))
    assert index is not None
    listed = json.loads(index[0])["manifests"]
    assert {each["digest"] for each in listed} == set(pushed.referrers.values())
    assert SBOM in {each["artifactType"] for each in listed}

    again = bench.push(image, place("case"))
    assert (again.digest, again.sent) == (pushed.digest, 0)
    assert {each.how for each in again.blobs} == {"present"}

    bench.remove(image)
    source = parse_bucket_image(f"s3://{bucket}/{bench.name}/case:1")
    pulled = pull(source, bench.engine, TransferProgress(quiet=True))
    assert (pulled.image.id, pulled.manifest) == (pushed.config_digest, pushed.digest)
    assert pulled.image.labels == here.labels
    assert files_of(bench.engine, image) == files
    assert (
        Known().pushed_as(pulled.image.id) == pushed.reference == f"s3://{bucket}/{bench.name}/case@{pushed.digest}"
    )


def test_a_second_case_sends_its_own_layer(bench: Bench, place: OpenPlace) -> None:
    first = bench.push(build(bench, "one:1", b"one"), place("one"))
    second = bench.push(build(bench, "two:1", b"two"), place("two"))
    shared, *own = second.blobs
    assert shared.blob == first.blobs[0].blob
    assert shared.how != "uploaded"
    assert [each.how for each in own] == ["uploaded", "uploaded"]
    assert {each.how for each in bench.push(f"{bench.name}/one:1", place("elsewhere")).blobs} == {"copied"}


def status(bucket: str, path: str) -> int:
    """The answer to somebody without a key."""
    request = urllib.request.Request(f"{os.environ['FLAGBENCH_TEST_S3']}/{bucket}/v2/{path}", method="HEAD")
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_restricted_base_is_not_made_public_without_consent(
    bench: Bench, place: OpenPlace, server: Any, bucket: str, tmp_path: Path
) -> None:
    terms = Redistribution("restricted", "because of its licence", None)
    stack = replace(load_catalog(claims=False).stacks["cpu"], base_redistribution=terms)
    image = bench.build("case:1", "FROM scratch\nCOPY base /base\nCOPY own /own\n", 1, {"base": b"1", "own": b"2"})
    sbom = tmp_path / "sbom.json"
    sbom.write_text("{}")
    options: dict[str, Any] = {"stack": stack, "sbom_of": lambda name, before, now: sbom}
    pushed = bench.push(image, place("case"), may_redistribute=True, **options)
    listed = [each["Key"] for each in server.list_objects_v2(Bucket=bucket)["Contents"]]
    paths = [key.removeprefix("v2/") for key in listed]
    # The image is known, and every layer is there or can be copied: still nothing is published.
    for known in (None, Known(tmp_path / "nothing")):
        for name in ("case", "other"):
            with pytest.raises(FlagbenchError) as caught:
                bench.push(image, place(name, public=True), known=known, **options)
            assert caught.value.code is ExitCode.USAGE
    assert {status(bucket, path) for path in paths} == {403}
    assert not place("other").has_blob(pushed.blobs[0].blob.digest)
    again = bench.push(image, place("case", public=True), may_redistribute=True, **options)
    assert again.digest == pushed.digest
    # The documents and their list, too.
    assert {path: status(bucket, path) for path in paths} == dict.fromkeys(paths, 200)


def test_the_command_pushes_into_a_bucket(
    bench: Bench, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, stack = own_stack(bench, tmp_path, build(bench, "case:1", b"own"))
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    push = ["push", f"distilbert:{stack}", "--json", "--to"]
    assert main.run([*push, f"s3://{bucket}"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["place"] == f"s3://{bucket}/flagbench/distilbert"
    assert first["tags"] == [f"{stack}-{VERSION}", stack]
    path = f"flagbench/distilbert/manifests/{first['digest']}"
    assert status(bucket, path) == 403
    assert main.run([*push, f"s3://{bucket}", "--public"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_sent"] == 0
    assert status(bucket, path) == 200
    assert main.run([*push, f"s3://{bucket}/prefix"]) == ExitCode.USAGE
    assert "proxy_pass" in capsys.readouterr().err


def test_an_image_that_was_pulled_is_pushed_on_without_its_bytes(
    bench: Bench, place: OpenPlace, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = build(bench, "case:1", os.urandom(1000))
    first = bench.push(image, place("case"))
    bench.remove(image)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another machine"))
    pull(parse_bucket_image(f"s3://{bucket}/{bench.name}/case:1"), bench.engine, TransferProgress(quiet=True))
    monkeypatch.setattr(bench.engine, "save", lambda *names: pytest.fail("the image was read"))
    again = bench.push(image, place("copy"))
    assert (again.digest, again.sent) == (first.digest, 0)
