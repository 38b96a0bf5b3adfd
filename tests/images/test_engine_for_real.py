"""Builds on a real Docker Engine: progress, cache, failure, hostile values."""

import io
import os
import pty
import threading
import uuid

import pytest

from flagbench.images.docker import BuildRequest
from flagbench.images.docker_errors import BuildFailed
from flagbench.images.render.directory import context_tar, make_build_directory

pytest_plugins = ["containers"]
pytestmark = pytest.mark.docker

HOSTILE = "a\"b'c\\ $(touch /x) `touch /x` ${HOME} $HOME \t#&=?%00é --privileged"


@pytest.fixture
def name(docker_client):
    """A repository of this test's own; its images are removed."""
    repository = f"flagbench-test/{uuid.uuid4().hex[:12]}"
    yield repository
    for image in docker_client.api.images(name=repository, quiet=True):
        docker_client.api.remove_image(image, force=True)


@pytest.fixture
def build(docker_engine, name):
    """`build(DOCKERFILE, FILES, ...)`: what was built as NAME:1, and what the client printed."""

    def build(dockerfile, files=None, show=None, **options):
        texts = {path: text.encode() for path, text in (files or {}).items()}
        shown = io.StringIO() if show is None else show
        request = BuildRequest(
            context_tar(make_build_directory("test", dockerfile, texts), {}), **{"tags": (f"{name}:1",), **options}
        )
        image = docker_engine.build(request, show=shown)
        return image, shown.getvalue()

    return build


def test_a_build_and_the_same_again(build, docker_engine, debian, name):
    dockerfile = f"FROM {debian}\nCOPY greeting /\nRUN cat /greeting && echo {name} > /made\n"
    files, labels = {"greeting": "hällo\n"}, {"dev.flagbench.test": "1"}
    built, shown = build(dockerfile, files, tags=(f"{name}:1", f"{name}:2"), labels=labels)
    assert " hällo\n" in shown
    assert built == docker_engine.inspect(f"{name}:2")
    assert built.labels["dev.flagbench.test"] == "1"
    assert built.layers[:1] == docker_engine.inspect(debian).layers
    again, shown = build(dockerfile, files, tags=(f"{name}:3",), labels=labels)
    assert again.id == built.id
    assert "CACHED" in shown
    docker_engine.tag(built.id, f"{name}:4")
    assert docker_engine.inspect(f"{name}:4").id == built.id


def test_hostile_values_stay_values(build, debian, name):
    check = f'test "$GIVEN" && test ! -e /x && printf %s "$GIVEN" # {name}'
    labels = {"dev.flagbench.test": HOSTILE}
    built, shown = build(f"FROM {debian}\nARG GIVEN\nRUN {check}\n", build_args={"GIVEN": HOSTILE}, labels=labels)
    assert f" {HOSTILE}" in shown
    assert built.labels == labels


def test_on_a_terminal_a_drawn_failure_is_explained(build, debian):
    """The cause stands far above the end: pip gives up long after the certificate."""
    ours, theirs = pty.openpty()
    drawn = []
    reader = threading.Thread(target=lambda: drawn.extend(read_all(ours)))
    reader.start()
    run = "echo CERTIFICATE_VERIFY_FAILED; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done; exit 1"
    with open(theirs, "w") as terminal, pytest.raises(BuildFailed) as caught:
        build(f"FROM {debian}\nRUN {run}\n", show=terminal)
    reader.join()
    os.close(ours)
    assert b"\x1b[" in b"".join(drawn)
    assert "--ca-bundle" in caught.value.remedy


def read_all(descriptor):
    """What comes through a terminal until its other end is closed, in pieces."""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            return
        yield piece


def test_proxies_reach_the_steps_and_leave_no_trace(build, docker_engine, debian, name, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret-of-the-proxy@proxy.example:3128")
    given = 'test "$https_proxy" = "$HTTPS_PROXY" && test -n "$HTTPS_PROXY"'
    build(f"FROM {debian}\nRUN {given} && echo {name} > /n\n")
    # Layers, history and configuration.
    whole = b"".join(docker_engine.save(f"{name}:1"))
    assert name.encode() in whole
    assert b"secret-of-the-proxy" not in whole
    assert b"proxy.example" not in whole


@pytest.mark.parametrize("base", ["registry.invalid/vendor/base:1", "localhost/flagbench/stack:no-such-stack"])
def test_a_base_that_cannot_be_pulled(build, base):
    """One of ours is not looked for on Docker Hub, where its name may be anybody's."""
    with pytest.raises(BuildFailed) as caught:
        build(f"FROM {base}\nRUN true\n")
    assert f"the base {base} cannot be pulled" in caught.value.message
    assert "docker.io" not in caught.value.message
    assert "--base" in caught.value.remedy
