"""A real container registry, which `.ci/registry` starts, and images to push.

A test module asks for the fixtures with `pytest_plugins = ["containers", "registries"]`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.images.docker import BuildRequest
from flagbench.images.render.directory import context_tar, make_build_directory
from flagbench.images.tags import TAG_VERSION
from running import need


@dataclass
class Registry:
    """The registry, and docker's configuration with an account for it."""

    host: str
    user: str
    password: str
    docker: Path
    """DOCKER_CONFIG."""

    def log_in(self, password: str | None = None) -> None:
        """As `docker login` does; a wrong password too."""
        account = base64.b64encode(f"{self.user}:{password or self.password}".encode()).decode()
        (self.docker / "config.json").write_text(json.dumps({"auths": {self.host: {"auth": account}}}))

    def log_out(self) -> None:
        """No account at all."""
        (self.docker / "config.json").write_text("{}")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry, with docker logged in."""
    need("FLAGBENCH_TEST_REGISTRY" in os.environ, "a container registry: `.ci/registry start DIR` and DIR/env")
    folder = tmp_path / "docker-config"
    folder.mkdir()
    names = ("FLAGBENCH_TEST_REGISTRY", "FLAGBENCH_TEST_REGISTRY_USER", "FLAGBENCH_TEST_REGISTRY_PASSWORD")
    found = Registry(*(os.environ[name] for name in names), folder)
    found.log_in()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return found


@dataclass
class Bench:
    """Images of the engine that look like flagbench's, under names of a test's own."""

    engine: Any
    docker: Any
    name: str = field(default_factory=lambda: f"flagbench-test/{uuid.uuid4().hex[:12]}")

    def build(self, image: str, dockerfile: str, files: dict[str, bytes], base: str = "debian:bookworm-slim") -> str:
        """Build an image that says that it stands on `base`; returns `NAME/IMAGE`."""
        labels = {"dev.flagbench.test": self.name, "org.opencontainers.image.base.name": base}
        context = context_tar(make_build_directory("test", dockerfile, files), {})
        name = f"{self.name}/{image}"
        self.engine.build(BuildRequest(context, tags=(name,), labels=labels, no_cache=True))
        return name

    def remove(self, *images: str) -> None:
        """Remove images from the engine, so that a pull has to fetch their layers."""
        for image in images:
            with contextlib.suppress(Exception):
                self.docker.api.remove_image(image, force=True)


@pytest.fixture
def bench(docker_client: Any, docker_engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """See Bench; everything that it made in the engine is removed, and no other test has its cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Bench(docker_engine, docker_client)
    yield made
    made.remove(*docker_client.api.images(filters={"label": f"dev.flagbench.test={made.name}"}, quiet=True))


def own_stack(bench: Bench, folder: Path, image: str) -> tuple[Path, str]:
    """Name an image as distilbert's on a stack of this test's own; returns a folder of manifests, and the stack."""
    stack, manifests = f"mini-{bench.name[-12:]}", folder / "manifests"
    shutil.copytree(Path(__file__).parents[1] / "manifests", manifests)
    plain = yaml.safe_load((manifests / "stacks" / "cpu.yaml").read_text(encoding="utf-8"))
    plain.update(name=stack, aliases=[])
    (manifests / "stacks" / f"{stack}.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    for name in (f"{stack}-{TAG_VERSION}", stack):
        bench.engine.tag(image, f"flagbench/distilbert:{name}")
    return manifests, stack
