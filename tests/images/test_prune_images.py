"""`flagbench results prune --images` on a real engine."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from flagbench import prune
from flagbench.errors import FlagbenchError
from flagbench.images.tags import CONTEXT_LABEL
from flagbench.manifests.load import load_catalog
from flagbench_core.exit_codes import ExitCode

pytest_plugins = ["containers"]
MANIFESTS = Path(__file__).parents[2] / "manifests"


@pytest.fixture
def tag(docker_client: Any) -> Iterator[str]:
    """An empty image of ours, of a version that nothing names any more."""
    name = f"flagbench/glm:cpu-{uuid.uuid4().hex[:12]}"
    file = io.BytesIO(f'FROM scratch\nLABEL {CONTEXT_LABEL}="sha256:0" of="{name}"\n'.encode())
    docker_client.images.build(fileobj=file, tag=name, rm=True)
    yield name
    try:
        docker_client.images.remove(name, force=True)
    except ImageNotFound:
        pass


def removable(docker_client: Any, tag: str) -> list[prune.Removable]:
    catalog = load_catalog(MANIFESTS, claims=False)
    return [found for found in prune.images(docker_client, catalog) if found.name == tag]


def test_an_image_of_an_old_version_is_removed(docker_client: Any, tag: str) -> None:
    (found,) = removable(docker_client, tag)
    found.remove()
    assert removable(docker_client, tag) == []
    with pytest.raises(ImageNotFound):
        docker_client.images.get(tag)


def test_an_image_with_a_name_of_somebody_else_is_kept(docker_client: Any, tag: str) -> None:
    image = docker_client.images.get(tag)
    image.tag("registry.example.com/bench/glm", tag.partition(":")[2])
    assert removable(docker_client, tag) == []
    docker_client.images.remove(f"registry.example.com/bench/glm:{tag.partition(':')[2]}")
    assert len(removable(docker_client, tag)) == 1


def test_an_image_that_a_container_uses_is_kept(docker_client: Any, tag: str) -> None:
    (found,) = removable(docker_client, tag)
    container = docker_client.containers.create(tag, command=["never-started"])
    try:
        with pytest.raises(FlagbenchError) as caught:
            found.remove()
        assert caught.value.code is ExitCode.ENGINE
        assert tag in caught.value.message
        assert docker_client.images.get(tag)
    finally:
        container.remove()
    found.remove()
    assert removable(docker_client, tag) == []
