"""Builds on a real Docker Engine: progress, cache, failure, cancellation, hostile values, memory, equal layers."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import tarfile
import threading
import uuid

import pytest

from flagbench.engines import open_client
from flagbench.engines.base import BuildFailed, BuildRequest
from flagbench.engines.reproducible import differences, layers_of
from running import need, wait_until

pytestmark = pytest.mark.docker

BASE = "debian:bookworm-slim"
EPOCH = 1_577_836_800
HOSTILE = "a\"b'c\\ $(touch /x) `touch /x` ${HOME} $HOME \t#&=?%00é --privileged"


def context(dockerfile, **files):
    """A build context in memory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in {"Dockerfile": dockerfile, **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return [out.getvalue()]


@pytest.fixture(scope="module")
def base(docker_engine):
    need(docker_engine.inspect(BASE) is not None, f"the image {BASE}")
    return BASE


@pytest.fixture
def name(docker_engine):
    """A repository of this test's own; its images are removed."""
    repository = f"flagbench-test/{uuid.uuid4().hex[:12]}"
    yield repository
    client = open_client()
    for image in client.images.list(name=repository):
        client.images.remove(image.id, force=True)
    client.close()


def build(engine, *arguments, **options):
    """What was built, and what the client printed."""
    shown = io.StringIO()
    return engine.build(BuildRequest(*arguments, **options), show=shown), shown.getvalue()


def step(built, part):
    """The one step with this in its name."""
    (found,) = [step for step in built.steps if part in step.name]
    return found


def test_a_build_and_the_same_again(docker_engine, base, name):
    dockerfile = f"FROM {base}\nCOPY greeting /\nRUN cat /greeting && echo {name} > /made\n"
    tar, labels = context(dockerfile, greeting="hällo\n"), {"dev.flagbench.test": "1"}
    built, shown = build(docker_engine, tar, tags=(f"{name}:1", f"{name}:2"), labels=labels)
    assert " hällo\n" in shown
    assert not step(built, "RUN cat").cached
    first, second = (docker_engine.inspect(f"{name}:{tag}") for tag in "12")
    assert first.id == second.id == built.image_id
    assert first.labels["dev.flagbench.test"] == "1"
    assert first.layers[:1] == docker_engine.inspect(base).layers

    again, _ = build(docker_engine, tar, tags=(f"{name}:3",), labels=labels)
    assert again.image_id == built.image_id
    assert step(again, "RUN cat").cached
    docker_engine.tag(built.image_id, f"{name}:4")
    assert docker_engine.inspect(f"{name}:4").id == built.image_id


def test_a_failing_step_is_told_and_nothing_is_tagged(docker_engine, base, name):
    dockerfile = f"FROM {base}\nRUN i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done; exit 3\n"
    with pytest.raises(BuildFailed) as caught:
        build(docker_engine, context(dockerfile), tags=(f"{name}:1",))
    assert caught.value.lines == tuple(f"line {n}" for n in range(10, 30))
    assert "exit code 3" in caught.value.message
    assert docker_engine.inspect(f"{name}:1") is None


def test_hostile_values_stay_values(docker_engine, base, name):
    check = f'test "$GIVEN" && test ! -e /x && printf %s "$GIVEN" # {name}'
    labels = {"dev.flagbench.test": HOSTILE}
    tar = context(f"FROM {base}\nARG GIVEN\nRUN {check}\n")
    built, shown = build(docker_engine, tar, tags=(f"{name}:1",), build_args={"GIVEN": HOSTILE}, labels=labels)
    assert f" {HOSTILE}" in shown
    assert step(built, "RUN test").name  # although what it printed has no line break
    assert docker_engine.inspect(f"{name}:1").labels == labels


def test_a_malformed_name_is_refused(docker_engine, base):
    with pytest.raises(BuildFailed) as caught:
        build(docker_engine, context(f"FROM {base}\n"), tags=("Not A Name; x",))
    assert "malformed" in caught.value.message


def test_on_a_terminal_the_client_draws_and_a_failure_is_explained(docker_engine, base):
    """The cause stands far above the end: pip gives up long after the certificate."""
    ours, theirs = pty.openpty()
    drawn = []
    reader = threading.Thread(target=lambda: drawn.extend(read_all(ours)))
    reader.start()
    run = "echo CERTIFICATE_VERIFY_FAILED; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done; exit 1"
    with open(theirs, "w") as terminal, pytest.raises(BuildFailed) as caught:
        docker_engine.build(BuildRequest(context(f"FROM {base}\nRUN {run}\n")), show=terminal)
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


def test_proxies_reach_the_steps_and_leave_no_trace(docker_engine, base, name, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret-of-the-proxy@proxy.example:3128")
    given = 'test "$https_proxy" = "$HTTPS_PROXY" && test -n "$HTTPS_PROXY"'
    build(docker_engine, context(f"FROM {base}\nRUN {given} && echo {name} > /n\n"), tags=(f"{name}:1",))
    # Layers, history and configuration; a word may lie across two chunks.
    found, rest = set(), b""
    for chunk in docker_engine.save(f"{name}:1"):
        found |= {word for word in (b"secret-of-the-proxy", b"proxy.example", name.encode()) if word in rest + chunk}
        rest = chunk[-100:]
    assert found == {name.encode()}


def test_an_image_of_ours_that_is_not_here_is_looked_for_nowhere_else(docker_engine):
    """Its name begins with localhost: Docker Hub, which a name without a host means, is not asked."""
    with pytest.raises(BuildFailed) as caught:
        build(docker_engine, context("FROM localhost/flagbench/stack:no-such-stack\nRUN true\n"))
    assert "no image localhost/flagbench/stack:no-such-stack" in caught.value.message
    assert "flagbench build" in caught.value.remedy


def test_a_base_that_cannot_be_pulled(docker_engine):
    reference = "registry.invalid/vendor/base:1"
    for pull in (lambda: build(docker_engine, context(f"FROM {reference}\n")), lambda: docker_engine.pull(reference)):
        with pytest.raises(BuildFailed) as caught:
            pull()
        assert f"{reference} cannot be reached" in caught.value.message


def running(marker):
    """Processes on this machine, where the engine runs its steps too, whose command line has the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if f"tail -f /dev/null {marker}".encode() in file.read().replace(b"\0", b" "):
                    found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.fixture
def endless(docker_engine, base):
    """A request whose RUN step does not end, and a marker in the command line of its process."""
    need(docker_engine.free_bytes() is not None, "a Docker Engine on this machine")
    marker = f"/tmp/{uuid.uuid4().hex}"
    return marker, context(f"FROM {base}\nRUN touch {marker} && exec tail -f /dev/null {marker}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_step_and_the_client(docker_engine, endless, tmp_path, number):
    marker, tar = endless
    (tmp_path / "context.tar").write_bytes(b"".join(tar))
    code = (
        "import sys\nfrom flagbench.engines import open_engine\nfrom flagbench.engines.base import BuildRequest\n"
        "open_engine().build(BuildRequest([open(sys.argv[1], 'rb').read()]))\n"
    )
    building = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "context.tar")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: running(marker) or building.poll() is not None, 60)
        building.send_signal(number)
        _, errors = building.communicate(timeout=30)
    finally:
        building.kill()
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not running(marker), 5)
    with pytest.raises(ProcessLookupError):  # nothing is left of its session
        os.killpg(building.pid, 0)


STREAMED = """
import json, resource, sys, tarfile
from flagbench.engines import open_engine
from flagbench.engines.base import BuildRequest

dockerfile, size = sys.argv[1].encode(), int(sys.argv[2])

def member(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)

def chunks():
    yield member("Dockerfile", len(dockerfile)) + dockerfile + bytes(-len(dockerfile) % 512)
    yield member("inputs/wheel", size)
    for _ in range(size // 2**20):
        yield bytes(2**20)
    yield bytes(1024)

engine = open_engine()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
engine.build(BuildRequest(chunks()))
print(json.dumps({"grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}))
"""


def test_a_large_context_is_streamed(docker_engine, base, name):
    dockerfile = (
        f"FROM {base}\nRUN --mount=type=bind,source=inputs,target=/mnt stat -c %s /mnt/wheel > /{name[-12:]}\n"
    )

    def grown(mib):
        done = subprocess.run(
            [sys.executable, "-c", STREAMED, dockerfile, str(mib * 2**20)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["grown_kib"]

    # What the client library itself takes is in both.
    assert grown(50) - grown(1) < 10 * 1024


def test_two_builds_are_equal_without_their_times(docker_engine, base, name):
    # The image is of what a step made and not of its base, which is the larger part and the same anyway.
    made = f"mkdir -p /made/folder && echo {name} > /made/folder/file && ln -s file /made/folder/link"
    dockerfile = f"FROM {base} AS step\nRUN {made}\nFROM scratch\nCOPY --from=step /made /opt\nCOPY greeting /opt/\n"
    layers, ids = [], []
    for number in "12":
        request = BuildRequest(
            context(dockerfile, greeting="hello\n"),
            tags=(f"{name}:{number}",),
            build_args={"SOURCE_DATE_EPOCH": str(EPOCH)},
            no_cache=True,
        )
        ids.append(docker_engine.build(request).image_id)
        layers.append(layers_of(docker_engine.save(f"{name}:{number}"), EPOCH))
    assert ids[0] != ids[1]
    assert differences(*layers) == []
    assert [one.digest for one in layers[0]] == [one.digest for one in layers[1]]
