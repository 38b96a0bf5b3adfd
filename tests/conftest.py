"""What all tests share: their folder on the path, the schema of a record, and that nothing stays behind."""

import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Tests import the helpers in tests/ by their names, and tools/ as a package.
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), ROOT]

# Workers keep all processors busy; with a thread for each of them, every process would wait for the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A store of whoever runs the tests is none of theirs; images take it from there, too.
os.environ.pop("FLAGBENCH_STORE", None)

import builds  # noqa: E402
import leftovers  # noqa: E402
import nvml_stubs  # noqa: E402
import warmup  # noqa: E402
from running import need, need_megatron  # noqa: E402

# A shell starts what runs in its background with these ignored, and so would be every process that a test signals.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

RUNS = tuple(os.path.join(ROOT, "tests", name, "") for name in ("engine", "cluster"))
"""The folders of tests that start runs, which take seconds and some of which wait."""
ENGINES = {"docker_client", "docker_engine"}
"""Fixtures that open a connection to a Docker Engine."""


SERVERS = (builds.NEEDED, "an S3 server", "FLAGBENCH_TEST_WITHOUT_S3", "a Slurm", "FLAGBENCH_TEST_WITHOUT_SLURM")
"""In the reasons of tests that are skipped for want of a server, many of them."""


LONGEST_NAME = 200
"""Characters of a parameter that are in its test's name."""


@pytest.fixture(scope="session")
def record_schema():
    """manifests/schema/record-v1.json."""
    with open(os.path.join(ROOT, "manifests", "schema", "record-v1.json"), encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory):
    """Builds a stand-in for NVML with the given macros; gives the environment in which a process finds it."""
    return nvml_stubs.NvmlStubs(lambda: tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that all workers of this session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture(scope="session")
def megatron():
    """Megatron-Core, or a skipped test."""
    need_megatron()


@pytest.fixture
def small_disk(tmp_path, request):
    """A real file system of 64 KiB, or of the size that its parameter gives."""
    place, size = tmp_path / "small", getattr(request, "param", "size=64k")
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)]
    need(subprocess.run(mount, check=False, capture_output=True).returncode == 0, "privileges to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """Fail a test that leaves its process changed, so that tests pass in any order and on any number of workers."""
    before = leftovers.look()
    yield
    left = leftovers.left_behind(before)
    if left:
        pytest.fail("the test left behind: %s" % "; ".join(left), pytrace=False)


def pytest_configure(config):
    """Start what warms up runs, once for all workers, and keep runs and the cache out of the user's own folders."""
    if hasattr(config, "workerinput"):
        gc.disable()  # until the tests are collected
    else:
        folder = tempfile.mkdtemp(prefix="flagbench-user-")
        os.environ["XDG_DATA_HOME"] = os.path.join(folder, "data")
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        warmup.start()


def pytest_make_parametrize_id(val):
    """A long value names its test by its beginning: the name is in the environment of what the test starts, where a
    variable of 128 KiB is too long."""
    if isinstance(val, (str, bytes)) and len(val) > LONGEST_NAME:
        start = val[:LONGEST_NAME] if isinstance(val, str) else repr(val[:LONGEST_NAME])
        return "%s... (%d)" % (start, len(val))
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """What was imported and collected stays, and is not to be looked through again and again by the collector, which
    otherwise takes a twentieth of all time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs):
    """Workers are copies of the warmed-up process, too, where there is torch."""
    if importlib.util.find_spec("torch") is not None:
        python = "//python=%s" % warmup.WORKER
        specs[:] = [type(spec)(str(spec) + python) if spec.popen and not spec.python else spec for spec in specs]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Every test that asks for an engine is marked `docker`, so that those alone can be run, or left out.

    Runs come first, so that no worker is left with one while the others are done, and of them the slow ones: what a
    module of theirs prepares is then not prepared again by a worker that takes over half of it.
    """
    for item in items:
        if ENGINES & set(getattr(item, "fixturenames", ())):
            item.add_marker("docker")
    items.sort(key=lambda item: (not str(item.path).startswith(RUNS), item.get_closest_marker("slow") is None))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """Tests that are skipped for one reason of this machine are told in one line, wherever they are."""
    outcome = yield
    report = outcome.get_result()
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if any(server in reason for server in SERVERS):
        report.longrepr = (builds.__file__, 0, reason)


def pytest_terminal_summary(terminalreporter, config):
    """Say how to repeat a shuffled order; with -q nothing else does."""
    if config.getoption("random_order_enabled", False):
        seed = config.getoption("random_order_seed").replace("default:", "")
        terminalreporter.line("the order of these tests: --random-order-seed=%s" % seed)
