"""Whether images can be built here at all, found out once for all tests and workers of a session."""

import fcntl
import json
import os
import uuid
from contextlib import closing

from running import need

NEEDED = "a Docker Engine whose builds reach a base image and packages"
BASE = "debian:bookworm-slim"
TAG = "flagbench-test/probe:%s" % uuid.uuid4().hex[:12]
PROBE = """FROM %s
RUN apt-get -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o APT::Update::Error-Mode=any update
"""


def need_builds(folder):
    """Skip where there is no Docker Engine, or its builds reach neither the base image nor packages; in CI fail.

    `folder` is the session's, shared by its workers: the question costs some seconds and is asked once. Where
    FLAGBENCH_TEST_WITHOUT_DOCKER is set, CI skips too: it runs these tests by themselves.
    """
    if os.environ.get("FLAGBENCH_TEST_WITHOUT_DOCKER"):
        import pytest

        pytest.skip("FLAGBENCH_TEST_WITHOUT_DOCKER is set: this test needs %s" % NEEDED)
    reason = once(folder, "builds", probe)
    need(reason is None, "%s, but %s" % (NEEDED, reason))


def probe():
    """Why images cannot be built here, in one line; None where they can. Leaves no image."""
    from flagbench.errors import FlagbenchError
    from flagbench.images.docker import BuildRequest, DockerEngine
    from flagbench.images.docker_api import open_client
    from flagbench.images.render.directory import context_tar, make_build_directory

    dockerfile = PROBE % (os.environ.get("FLAGBENCH_BASE") or BASE)
    if os.environ.get("FLAGBENCH_APT_SOURCE"):
        dockerfile = dockerfile.partition("RUN")[0]  # packages come from there
    try:
        with closing(open_client()) as client:
            context = context_tar(make_build_directory("probe", dockerfile, {}), {})
            DockerEngine(client).build(BuildRequest(context, tags=(TAG,), no_cache=True))
            client.api.remove_image(TAG)
    except FlagbenchError as error:
        return " ".join(error.message.split())
    return None


def once(folder, name, find):
    """What `find()` gives, JSON; found by the first of a session's workers, the others wait for it."""
    path = os.path.join(str(folder), "%s.json" % name)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            found = find()
            with open(path, "w", encoding="utf-8") as file:
                json.dump(found, file)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
