"""Builds on a real Docker Engine: progress, cache, failure, hostile values, memory."""

import io
import os
import pty
import subprocess
import sys
import threading
import uuid

import pytest

from flagbench.engines.base import BuildFailed, BuildRequest
from flagbench.render.model import context_tar, rendered

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


def context(dockerfile, **files):
    """A build context of text files."""
    return context_tar(rendered("test", dockerfile, {name: text.encode() for name, text in files.items()}), {})


def build(engine, dockerfile, files=None, **options):
    """What was built, and what the client printed."""
    shown = io.StringIO()
    return engine.build(BuildRequest(context(dockerfile, **(files or {})), **options), show=shown), shown.getvalue()


def step(built, part):
    """The one step with this in its name."""
    (found,) = [step for step in built.steps if part in step.name]
    return found


def test_a_build_and_the_same_again(docker_engine, debian, name):
    dockerfile = f"FROM {debian}\nCOPY greeting /\nRUN cat /greeting && echo {name} > /made\n"
    files, labels = {"greeting": "hällo\n"}, {"dev.flagbench.test": "1"}
    built, shown = build(docker_engine, dockerfile, files, tags=(f"{name}:1", f"{name}:2"), labels=labels)
    assert " hällo\n" in shown
    assert not step(built, "RUN cat").cached
    first, second = (docker_engine.inspect(f"{name}:{tag}") for tag in "12")
    assert first.id == second.id == built.image_id
    assert first.labels["dev.flagbench.test"] == "1"
    assert first.layers[:1] == docker_engine.inspect(debian).layers

    again, _ = build(docker_engine, dockerfile, files, tags=(f"{name}:3",), labels=labels)
    assert again.image_id == built.image_id
    assert step(again, "RUN cat").cached
    docker_engine.tag(built.image_id, f"{name}:4")
    assert docker_engine.inspect(f"{name}:4").id == built.image_id


def test_hostile_values_stay_values(docker_engine, debian, name):
    check = f'test "$GIVEN" && test ! -e /x && printf %s "$GIVEN" # {name}'
    labels = {"dev.flagbench.test": HOSTILE}
    options = {"tags": (f"{name}:1",), "build_args": {"GIVEN": HOSTILE}, "labels": labels}
    built, shown = build(docker_engine, f"FROM {debian}\nARG GIVEN\nRUN {check}\n", **options)
    assert f" {HOSTILE}" in shown
    assert step(built, "RUN test").name  # although what it printed has no line break
    assert docker_engine.inspect(f"{name}:1").labels == labels


def test_a_malformed_name_is_refused(docker_engine, debian):
    with pytest.raises(BuildFailed) as caught:
        build(docker_engine, f"FROM {debian}\n", tags=("Not A Name; x",))
    assert "invalid reference format" in caught.value.message


def test_on_a_terminal_a_drawn_failure_is_explained(docker_engine, debian):
    """The cause stands far above the end: pip gives up long after the certificate."""
    ours, theirs = pty.openpty()
    drawn = []
    reader = threading.Thread(target=lambda: drawn.extend(read_all(ours)))
    reader.start()
    run = "echo CERTIFICATE_VERIFY_FAILED; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done; exit 1"
    with open(theirs, "w") as terminal, pytest.raises(BuildFailed) as caught:
        docker_engine.build(BuildRequest(context(f"FROM {debian}\nRUN {run}\n")), show=terminal)
    reader.join()
    os.close(ours)
    assert b"\x1b[" in b"".join(drawn)
    assert "--ca-bundle" in caught.value.remedy
    assert caught.value.lines[-1] == "line 29"


def read_all(descriptor):
    """What comes through a terminal until its other end is closed, in pieces."""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            return
        yield piece


def test_proxies_reach_the_steps_and_leave_no_trace(docker_engine, debian, name, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret-of-the-proxy@proxy.example:3128")
    given = 'test "$https_proxy" = "$HTTPS_PROXY" && test -n "$HTTPS_PROXY"'
    build(docker_engine, f"FROM {debian}\nRUN {given} && echo {name} > /n\n", tags=(f"{name}:1",))
    # Layers, history and configuration; a word may lie across two chunks.
    found, rest = set(), b""
    for chunk in docker_engine.save(f"{name}:1"):
        found |= {word for word in (b"secret-of-the-proxy", b"proxy.example", name.encode()) if word in rest + chunk}
        rest = chunk[-100:]
    assert found == {name.encode()}


def test_a_missing_image_of_ours_is_looked_for_nowhere(docker_engine):
    """Its name begins with localhost: Docker Hub, which a name without a host means, is not asked."""
    with pytest.raises(BuildFailed) as caught:
        build(docker_engine, "FROM localhost/flagbench/stack:no-such-stack\nRUN true\n")
    assert "no image localhost/flagbench/stack:no-such-stack" in caught.value.message
    assert "flagbench build" in caught.value.remedy


def test_a_base_that_cannot_be_pulled(docker_engine):
    reference = "registry.invalid/vendor/base:1"
    for pull in (lambda: build(docker_engine, f"FROM {reference}\n"), lambda: docker_engine.pull(reference)):
        with pytest.raises(BuildFailed) as caught:
            pull()
        assert f"{reference} cannot be reached" in caught.value.message


STREAMED = """
import resource, sys
from pathlib import Path
from flagbench.engines import open_engine
from flagbench.engines.base import BuildRequest
from flagbench.render.model import context_tar, rendered

engine = open_engine()
context = context_tar(rendered("streamed", sys.argv[1], {}), {"wheel": Path(sys.argv[2])})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
engine.build(BuildRequest(context))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_context_is_streamed(docker_engine, debian, name, tmp_path):
    step = f"RUN --mount=type=bind,source=inputs,target=/mnt stat -c %s /mnt/wheel > /{name[-12:]}"

    def grown(mib):
        """KiB of memory that a build takes whose context has a file of this size."""
        wheel = tmp_path / "wheel"
        with wheel.open("wb") as file:
            file.truncate(mib * 2**20)
        command = [sys.executable, "-c", STREAMED, f"FROM {debian}\n{step}\n", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    # What the client library itself takes is in both.
    assert grown(50) - grown(1) < 10 * 1024
