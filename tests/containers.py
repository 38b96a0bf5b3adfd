"""Fixtures and helpers of tests that run containers: the engine, the image under test, a container followed.

A test module asks for the fixtures with `pytest_plugins = ["containers"]`.
"""

import json
import os
import subprocess
import sys
import uuid
from contextlib import closing

import pytest

from builds import BASE, need_builds, once
from flagbench.images.docker import DockerEngine
from flagbench.images.docker_api import open_client
from running import need, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHONPATH = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
LABEL = "dev.flagbench.test"
"""On every container, image and network that these tests make, so that a person finds what a killed test left."""


@pytest.fixture(scope="session")
def docker_client(shared_folder):
    """A docker.DockerClient; without an engine that can build here a test is skipped, in CI it fails."""
    need_builds(shared_folder)
    with closing(open_client()) as client:
        yield client


@pytest.fixture(scope="session")
def docker_engine(docker_client):
    """What the builder builds with: the same engine."""
    return DockerEngine(docker_client)


@pytest.fixture(scope="session")
def debian(docker_engine):
    """The base image that small images of tests are built from."""
    need(docker_engine.inspect(BASE) is not None, "the image %s" % BASE)
    return BASE


@pytest.fixture(scope="session")
def image_of(docker_client, shared_folder):
    """`image_of(CASE)`: this checkout's image of a case on the cpu stack, built with the options that the environment
    holds (FLAGBENCH_*)."""

    def image(case):
        failure = once(shared_folder, "image-%s" % case, lambda: build(case))
        need(failure is None, "an image that can be built here, and\n%s" % failure)
        return "flagbench/%s:cpu" % case

    return image


def build(case):
    """Build the image of a case; what the builder said last where that failed."""
    command = [sys.executable, "-m", "flagbench", "build", "%s:cpu" % case]
    env = dict(os.environ, PYTHONPATH=PYTHONPATH)
    built = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return built.stdout[-4000:] if built.returncode != 0 else None


@pytest.fixture(scope="session")
def cpu_image(image_of):
    """The image of distilbert, with which most tests are content."""
    return image_of("distilbert")


@pytest.fixture
def scripted(docker_client, cpu_image):
    """`scripted(SCRIPT, **labels)`: the name of an image that runs a line of shell, whose "$@" are its arguments."""
    made = []

    def make(script, **labels):
        name = "flagbench-test/scripted:%s" % uuid.uuid4().hex[:12]
        conf = {
            "Entrypoint": ["/usr/bin/tini", "-g", "--", "/bin/sh", "-c", script, "sh"],
            "Labels": {LABEL: "scripted", **{"dev.flagbench.%s" % key: value for key, value in labels.items()}},
        }
        container = docker_client.api.create_container(cpu_image)["Id"]
        try:
            repository, tag = name.split(":")
            docker_client.api.commit(container, repository=repository, tag=tag, conf=conf)
        finally:
            docker_client.api.remove_container(container)
        made.append(name)
        return name

    yield make
    for name in made:
        docker_client.api.remove_image(name, force=True)


@pytest.fixture
def network(docker_client):
    """The name of a docker network of this test's own, which answers for its containers' names."""
    made = docker_client.networks.create("flagbench-test-%s" % uuid.uuid4().hex[:8], labels={LABEL: "network"})
    yield made.name
    made.remove()


@pytest.fixture
def start(docker_client, cpu_image):
    """`start(*arguments, **options)`: a Run of the cpu image; removed after the test, whatever state it is in."""
    runs = []

    def begin(*arguments, **options):
        run = Run(docker_client, options.pop("image", cpu_image), list(arguments), options)
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.remove()


class Run:
    """One container of an image, from its start on. `options` are those of docker-py's `containers.create`.

    A rank has one thread unless told otherwise: the teams of tests beside one another would wait for each other.
    """

    def __init__(self, client, image, arguments, options):
        options.setdefault("environment", {"OMP_NUM_THREADS": "1"})
        aliases, network = options.pop("aliases", None), options.get("network")
        self.container = client.containers.create(image, arguments, labels={LABEL: "run"}, **options)
        if aliases:
            place = client.networks.get(network)
            place.disconnect(self.container)
            place.connect(self.container, aliases=aliases)
        self.container.start()

    @property
    def state(self):
        """The engine's State."""
        self.container.reload()
        return self.container.attrs["State"]

    @property
    def stderr(self):
        """Everything said so far."""
        return self.container.logs(stdout=False, stderr=True).decode()

    @property
    def lines(self):
        """The lines on stdout."""
        return self.container.logs(stdout=True, stderr=False).decode().splitlines()

    @property
    def record(self):
        """The one record; anything else on stdout is a failure."""
        lines = self.lines
        assert len(lines) == 1, "stdout has %d lines:\n%s\n%s" % (len(lines), lines, self.stderr)
        return json.loads(lines[0])

    def wait_for_training(self):
        """Until the steps have begun."""
        wait_until(lambda: "flagbench: train" in self.stderr or not self.state["Running"], 120)
        assert self.state["Running"], self.stderr

    def wait(self, seconds=180):
        """The exit code, once it has ended."""
        wait_until(lambda: self.state["Status"] == "exited", seconds)
        return self.state["ExitCode"]

    def remove(self):
        """Take it away, paused or running."""
        if self.state["Paused"]:
            self.container.unpause()
        self.container.remove(force=True, v=True)


class Tool:
    """`flagbench` with a store of this test's own, and the one run that it is asked for."""

    def __init__(self, client, folder):
        self.client = client
        self.run_id = "test-%s" % uuid.uuid4().hex[:12]
        store = "file://%s" % (folder / "store")
        self.env = dict(os.environ, PYTHONPATH=PYTHONPATH, FLAGBENCH_STORE=store, NO_COLOR="1")
        self.started = []

    def start(self, *arguments, **env):
        """Begin a command; its output is read at the end."""
        command = [sys.executable, "-m", "flagbench", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env={**self.env, **env}, **pipes)
        self.started.append(process)
        return process

    def do(self, *arguments, **env):
        """A command to its end: the process, with its output as `out` and `err`."""
        process = self.start(*arguments, **env)
        process.out, process.err = process.communicate(timeout=300)
        return process

    def words(self, *arguments, stack="cpu", image=None):
        """`run` in a container, of the published size where nothing else is said: such a run is asked for twice."""
        other = [] if image is None else ["--image", image]
        return ["run", "distilbert:" + stack, "--yes", "--via", "docker", "--run-id", self.run_id, *other, *arguments]

    def run(self, *arguments, stack="cpu", image=None, **env):
        """A run in a container to its end."""
        return self.do(*self.words(*arguments, stack=stack, image=image), **env)

    def start_run(self, *arguments, said, image=None, **env):
        """A run in a container that goes on and has said something: the tool's process, and the container."""
        process = self.start(*self.words(*arguments, image=image), **env)
        wait_until(lambda: process.poll() is not None or any(said in logs(each) for each in self.containers()), 120)
        assert process.poll() is None, process.communicate()
        (container,) = self.containers()
        return process, container

    def containers(self):
        """Of the run, in whatever state."""
        # One may be removed between being listed and being looked at.
        filters = {"label": "dev.flagbench.run=%s" % self.run_id}
        return self.client.containers.list(all=True, filters=filters, ignore_removed=True)

    def stored(self):
        """The newest record of the store."""
        shown = self.do("results", "show", "last", "--json")
        assert shown.returncode == 0, shown.err
        return json.loads(shown.out)


@pytest.fixture
def tool(tmp_path, docker_client):
    """The tool; neither its processes nor its containers outlive the test, whatever that did to them."""
    made = Tool(docker_client, tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    for container in made.containers():
        container.remove(force=True, v=True)


def logs(container):
    """What it has said; nothing, where it was removed just now."""
    from docker.errors import NotFound

    try:
        return container.logs().decode()
    except NotFound:
        return ""
