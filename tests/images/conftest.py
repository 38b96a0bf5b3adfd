"""The Docker Engine that tests of images are run on."""

import sys

import pytest

from builds import need_builds

# These tests are of the host side, which Python 3.8 does not run.
collect_ignore_glob = ["test_*.py"] if sys.version_info < (3, 10) else []


@pytest.fixture(scope="session")
def docker_engine(shared_folder):
    """The engine that docker's settings name; without one that can build here a test is skipped, in CI it fails."""
    from flagbench.engines import open_engine
    from flagbench.errors import FlagbenchError
    from running import need

    need_builds(shared_folder)
    try:
        engine = open_engine()
    except FlagbenchError as error:
        need(False, f"a Docker Engine, but {error.message}")
    yield engine
    engine.close()
