"""Images pulled from a bucket into a real engine: by flagbench from a private one, by engines from a public one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.images.bucket import parse_bucket_image
from flagbench.images.docker import DockerEngine
from flagbench.images.pull import Pulled, pull
from flagbench_core.exit_codes import ExitCode
from oci_images import HandMade, make_image, sha256
from running import need
from warmup import warm

pytest_plugins = ["containers"]
pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[2]
PART = 8 * 2**20
REGISTRY_BUCKET = "flagbench-registry"


@pytest.fixture
def name(docker_client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A repository that nobody else uses; its images are removed from the engine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = f"flagbench-test/{uuid.uuid4().hex[:12]}"
    yield made
    for image in docker_client.api.images():
        for tag in image["RepoTags"] or ():
            if made in tag:
                docker_client.api.remove_image(tag, force=True)


@pytest.fixture
def push(server: Any, bucket: str, name: str) -> Callable[[HandMade], str]:
    """`push(IMAGE)`: put an image into the bucket; its address there."""
    return lambda image: image.put(server, bucket, name)


def pulled(address: str, engine: DockerEngine) -> Pulled:
    """Pull without a word."""
    return pull(parse_bucket_image(address), engine, Progress(quiet=True))


@pytest.fixture
def base(docker_engine: DockerEngine, debian: str) -> tuple[str, ...]:
    """Layers of an image that is in the engine; their blobs are nowhere."""
    found = docker_engine.inspect(debian)
    assert found is not None
    return found.layers


def test_an_image_comes_back_as_it_was_pushed(
    push: Callable[[HandMade], str], docker_engine: DockerEngine, docker_client: Any, name: str
) -> None:
    image = make_image({"one": b"1"}, {"bin/two": b"2"}, Labels={"dev.flagbench.test": name})
    address = push(image)
    got = pulled(address, docker_engine)
    assert (got.manifest, got.config, got.image.id) == (image.digest, image.id, image.id)
    assert docker_engine.inspect(f"{name}:cpu") == got.image
    assert got.downloaded == sum(len(layer or b"") for layer in image.layers)
    container = docker_client.api.create_container(got.image.id, "/bin/two")["Id"]
    try:
        chunks, _ = docker_client.api.get_archive(container, "/bin/two")
        assert b"2" in b"".join(chunks)
    finally:
        docker_client.api.remove_container(container)
    assert pulled(address, docker_engine).downloaded == 0
    by_digest = pulled(f"{address.removesuffix(':cpu')}@{image.digest}", docker_engine)
    assert by_digest.image.id == got.image.id
    assert docker_engine.inspect(by_digest.source.local_name) is not None


def test_layers_that_the_engine_has_are_not_downloaded(
    push: Callable[[HandMade], str], docker_engine: DockerEngine, base: tuple[str, ...]
) -> None:
    # Layers that no other test's image has: the engine would not download them.
    image = make_image({"one": os.urandom(10)}, {"two": os.urandom(10)}, below=base)
    got = pulled(push(image), docker_engine)
    assert got.image.layers[: len(base)] == base
    assert got.downloaded == sum(len(layer or b"") for layer in image.layers)


@pytest.mark.parametrize("part", ["layer", "config", "manifest", "diff id", "order", "size", "missing"])
def test_what_does_not_match_its_digest_is_not_loaded(
    push: Callable[[HandMade], str],
    docker_engine: DockerEngine,
    server: Any,
    bucket: str,
    name: str,
    part: str,
) -> None:
    lies = [f"sha256:{'0' * 64}"] * 2 if part == "diff id" else None
    image = make_image({"one": os.urandom(1000)}, {"two": b"2"}, diff_ids=lies, swapped=part == "order")
    address = push(image)
    layer = f"blobs/{sha256(image.layers[0] or b'')}"
    keys = {"layer": layer, "size": layer, "config": f"blobs/{image.id}", "manifest": f"manifests/{image.digest}"}
    if part in keys:
        key = f"v2/{name}/{keys[part]}"
        content = server.get_object(Bucket=bucket, Key=key)["Body"].read()
        damaged = content[:-1] if part == "size" else bytes([content[0] ^ 1]) + content[1:]
        server.put_object(Bucket=bucket, Key=key, Body=damaged)
    if part == "missing":
        server.delete_object(Bucket=bucket, Key=f"v2/{name}/{layer}")
    if part == "manifest":
        address = f"{address}@{image.digest}"
    with pytest.raises(FlagbenchError) as caught:
        pulled(address, docker_engine)
    assert caught.value.code is ExitCode.DATA
    assert docker_engine.inspect(image.id) is None
    assert docker_engine.inspect(f"{name}:cpu") is None


def test_an_image_that_is_not_there(docker_engine: DockerEngine, bucket: str, name: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        pulled(f"s3://{bucket}/{name}:cpu", docker_engine)
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize("fault", [(503, "SlowDown"), "cut"])
def test_a_bad_network_is_survived(
    push: Callable[[HandMade], str], docker_engine: DockerEngine, proxy: Any, fault: Any
) -> None:
    image = make_image({"big": os.urandom(PART + 1)})
    address = push(image)
    seen: set[str] = set()

    def once(method: str, path: str, count: int) -> Any:
        if method != "GET" or "/blobs/" not in unquote(path) or path in seen:
            return None
        seen.add(path)
        return fault

    proxy.fault = once
    assert pulled(address, docker_engine).image.id == image.id
    assert len(seen) == 2  # configuration and layer


def flagbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command to its end; no secret may be in what it prints."""
    path = os.pathsep.join(str(ROOT / name) for name in ("builder", "entrypoints"))
    environment = {**os.environ, "NO_COLOR": "1", **warm(path)}
    command = [sys.executable, "-m", "flagbench", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    for secret in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert os.environ[secret] not in ended.stdout + ended.stderr
    return ended


def test_a_run_pulls_its_image(
    push: Callable[[HandMade], str], docker_engine: DockerEngine, base: tuple[str, ...], name: str
) -> None:
    script = 'printf \'{"ran": "%s", "image": "%s"}\\n\' "$*" "$FLAGBENCH_IMAGE_ID"'
    image = make_image(
        {"one": b"1"},
        below=base,
        Entrypoint=["/bin/sh", "-c", script, "sh"],
        Labels={"dev.flagbench.case": "distilbert", "dev.flagbench.stack": "cpu"},
        Env=["PATH=/usr/bin:/bin"],
    )
    address = push(image)
    short = ["--preset", "tiny", "--data", "synthetic", "--steps", "2"]
    shown = flagbench("run", "distilbert:cpu", *short, "--image", address, "--dry-run", "--json")
    assert f" {name}:cpu " in json.loads(shown.stdout)["command"]
    assert docker_engine.inspect(f"{name}:cpu") is None
    ran = flagbench("run", "distilbert:cpu", *short, "--image", address, "--json")
    assert image.id in ran.stdout, ran.stderr
    other = flagbench("run", "glm:cpu", *short, "--image", address, "--json")
    assert other.returncode == ExitCode.USAGE


def test_the_words_of_a_pull(push: Callable[[HandMade], str], docker_engine: DockerEngine, name: str) -> None:
    image = make_image({"one": os.urandom(1000)})
    address = push(image)
    assert flagbench("pull", address, "--quiet").stdout == f"{image.id}\n"
    assert json.loads(flagbench("pull", address, "--json").stdout) == {
        "source": address,
        "image": f"{name}:cpu",
        "image_id": image.id,
        "manifest": image.digest,
        "config": image.id,
        "downloaded": 0,
    }
    assert "up to date" in flagbench("pull", address).stdout


@pytest.fixture
def registry(server: Any, name: str) -> Iterator[str]:
    """The host at whose root the registry's bucket is served."""
    need("FLAGBENCH_TEST_S3_REGISTRY" in os.environ, "an S3 server that serves a bucket as a registry: .ci/storage")
    server.create_bucket(Bucket=REGISTRY_BUCKET)  # no error where it is ours
    yield os.environ["FLAGBENCH_TEST_S3_REGISTRY"]
    for each in server.list_objects_v2(Bucket=REGISTRY_BUCKET, Prefix=f"v2/{name}/").get("Contents", ()):
        server.delete_object(Bucket=REGISTRY_BUCKET, Key=each["Key"])


def test_docker_pulls_from_the_bucket(
    registry: str, server: Any, docker_engine: DockerEngine, docker_client: Any, name: str
) -> None:
    image = make_image({"one": os.urandom(1000)}, {"two": b"2"})
    image.put(server, REGISTRY_BUCKET, name, ACL="public-read")
    for reference in (f"{registry}/{name}:cpu", f"{registry}/{name}@{image.digest}"):
        got = docker_engine.pull(reference)
        assert got.id == image.id
        assert got.repo_digests == (f"{registry}/{name}@{image.digest}",)
        docker_client.api.remove_image(got.id, force=True)


def test_containerd_pulls_from_the_bucket(registry: str, server: Any, docker_engine: DockerEngine, name: str) -> None:
    socket = next(filter(os.path.exists, SOCKETS), None)
    need(socket is not None and shutil.which("ctr") is not None, "containerd, and its client ctr")
    image = make_image({"one": os.urandom(1000)})
    image.put(server, REGISTRY_BUCKET, name, ACL="public-read")
    ctr = ["ctr", "--address", str(socket), "--namespace", "flagbench-test"]
    for reference in (f"{registry}/{name}:cpu", f"{registry}/{name}@{image.digest}"):
        options = ["--tlscacert", os.environ["FLAGBENCH_TEST_S3_CA"], "--snapshotter", "native"]
        try:
            subprocess.run([*ctr, "images", "pull", *options, reference], check=True, capture_output=True, timeout=60)
            listed = subprocess.run([*ctr, "images", "ls"], check=True, capture_output=True, text=True)
            assert image.digest in listed.stdout
        finally:
            subprocess.run([*ctr, "images", "rm", "--sync", reference], check=False, capture_output=True)


SOCKETS = ("/var/run/docker/containerd/containerd.sock", "/run/containerd/containerd.sock")
"""Of the containerd that an engine has started, or of the machine's own."""
