"""A real container registry, which `.ci/registry` starts, a proxy before it that does what networks do, and images.

A test module asks for the fixtures with `pytest_plugins = ["containers", "registries"]`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.build.tiers import VERSION
from flagbench.catalog.load import load_catalog
from flagbench.engines.base import BuildRequest
from flagbench.oci.known import Known
from flagbench.oci.publish import Published, Wanted, publish
from flagbench.oci.registry import RegistryPlace
from flagbench.render.model import context_tar, rendered
from running import need

EPOCH = 315_532_800
CREATED = "2026-02-03T04:05:06Z"
DIGEST_LABELS = {"dev.flagbench.context": "sha256:" + "c" * 64, "dev.flagbench.lock": "sha256:" + "d" * 64}


@dataclass
class Registry:
    """The registry, and docker's configuration with an account for it."""

    host: str
    user: str
    password: str
    docker: Path
    """DOCKER_CONFIG."""

    def log_in(self, host: str | None = None, password: str | None = None) -> None:
        """As `docker login` does; a wrong password too."""
        account = base64.b64encode(f"{self.user}:{password or self.password}".encode()).decode()
        auths = {each: {"auth": account} for each in (self.host, host) if each}
        (self.docker / "config.json").write_text(json.dumps({"auths": auths}))

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
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flagbench.oci.registry._PAUSE", 0.0)
    return found


class Silent:
    """What a user would see of a push, kept."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, total: int) -> None:
        """Nothing is drawn."""

    advance = expect = start

    def end(self) -> None:
        """Nothing was drawn."""


@dataclass
class Bench:
    """Images of the engine that look like flagbench's, under names of a test's own, and their pushes."""

    engine: Any
    docker: Any
    registry: Registry
    name: str = field(default_factory=lambda: f"flagbench-test/{uuid.uuid4().hex[:12]}")
    report: Silent = field(default_factory=Silent)

    def build(
        self, image: str, dockerfile: str, base_layers: int, files: dict[str, bytes] | None = None, **labels: str
    ) -> str:
        """Build an image with the labels that `flagbench build` gives; returns `NAME/IMAGE`."""
        ours = {
            **DIGEST_LABELS,
            "dev.flagbench.test": self.name,
            "dev.flagbench.base.layers": str(base_layers),
            "dev.flagbench.epoch": str(EPOCH),
            "org.opencontainers.image.created": CREATED,
        }
        context = context_tar(rendered("test", dockerfile, files or {}), {})
        name = f"{self.name}/{image}"
        given = {**ours, **{key.replace("_", "."): value for key, value in labels.items()}}
        self.engine.build(BuildRequest(context, tags=(name,), labels=given, no_cache=True))
        return name

    def place(self, name: str = "case", host: str | None = None) -> RegistryPlace:
        """A repository of this test's own."""
        return RegistryPlace(f"{host or self.registry.host}/{self.name}/{name}")

    def push(
        self, image: str, place: Any = None, *, below: str = "none:1", known: Known | None = None, **options: Any
    ) -> Published:
        """Push as `flagbench push` does."""
        stack = load_catalog(claims=False).stacks["cpu"]
        wanted = Wanted(
            name=image,
            aliases=options.pop("aliases", ()),
            below=f"{self.name}/{below}",
            stack=options.pop("stack", stack),
            place=place or self.place(),
            sbom_of=options.pop("sbom_of", lambda name, before, now: None),
            **options,
        )
        return publish(wanted, self.engine, self.report, known)

    def run_docker(self, *arguments: str) -> str:
        """The docker command, with the registry's account."""
        ended = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def remove(self, *images: str) -> None:
        """Remove images from the engine, so that a pull has to fetch their layers."""
        for image in images:
            with contextlib.suppress(Exception):
                self.docker.api.remove_image(image, force=True)


@pytest.fixture
def bench(registry: Registry, docker_client: Any, docker_engine: Any) -> Iterator[Bench]:
    """See Bench; everything that it made in the engine is removed."""
    made = Bench(docker_engine, docker_client, registry)
    yield made
    # Listed without a look at each, which other tests may remove meanwhile.
    for image in docker_client.api.images():
        made.remove(*(tag for tag in image["RepoTags"] or () if made.name in tag))
    unnamed = {"dangling": True, "label": f"dev.flagbench.test={made.name}"}
    made.remove(*docker_client.api.images(filters=unnamed, quiet=True))


def own_stack(bench: Bench, folder: Path, image: str) -> tuple[Path, str]:
    """Name an image as distilbert's on a stack of this test's own; returns a folder of manifests, and the stack."""
    stack, manifests = f"mini-{bench.name[-12:]}", folder / "manifests"
    shutil.copytree(Path(__file__).parents[1] / "manifests", manifests)
    plain = yaml.safe_load((manifests / "stacks" / "cpu.yaml").read_text(encoding="utf-8"))
    plain.update(name=stack, aliases=[])
    (manifests / "stacks" / f"{stack}.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    for name in (f"{stack}-{VERSION}", stack):
        bench.engine.tag(image, f"flagbench/distilbert:{name}")
    return manifests, stack


def files_of(engine: Any, image: str) -> dict[str, tuple[bytes, int]]:
    """Every file that the layers of an image have: path to content and time."""
    found: dict[str, tuple[bytes, int]] = {}
    with tarfile.open(fileobj=io.BytesIO(b"".join(engine.save(image)))) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                for member in layer:
                    if member.isfile() and (file := layer.extractfile(member)):
                        found[member.name] = file.read(), int(member.mtime)
    return found


Fault = Callable[[bytes, int], "bytes | None"]
"""From what a client sends, and the number of bytes that it has sent before, to what arrives; None: it breaks off."""


class Proxy:
    """Passes bytes on to the registry; `fault` says what becomes of those that a client sends."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self.fault: Fault = lambda content, before: content
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for pump in (self._up, self._down):
                thread = threading.Thread(target=pump, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        before = 0
        with contextlib.suppress(OSError):
            while content := client.recv(65536):
                passed = self.fault(content, before)
                before += len(content)
                if passed is None:
                    for each in (client, server):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        each.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(passed)

    @staticmethod
    def _down(client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := server.recv(65536):
                client.sendall(content)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End every connection and thread."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()


@pytest.fixture
def proxy(registry: Registry) -> Iterator[Proxy]:
    """A proxy, for whose address docker has the registry's account."""
    made = Proxy(registry.host)
    registry.log_in(made.host)
    yield made
    made.close()
