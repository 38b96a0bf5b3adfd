"""`flagbench lock` and `flagbench wheels` with the real uv and pip, over an index laid out in a folder."""

import base64
import dataclasses
import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from flagbench.catalog.load import load_catalog
from flagbench.cli import main
from flagbench.locks.files import load_lock, lock_path
from flagbench.locks.model import LockEntry, Unresolved
from flagbench.locks.resolve import LockOptions, make_lock
from flagbench.locks.sources import Sources
from packages import Index
from running import need

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "d" * 64
BASE = f"127.0.0.1:1/base:1@{DIGEST}"
SETUP = "open({!r}, 'w').close()\nimport torch\n"
METADATA = """\
[[dependency-metadata]]
name = "kernel"
version = "3.0"
requires-dist = ["torch", "helper>=1"]
[[dependency-metadata]]
name = "torch"
version = "9.9+cpu"
requires-dist = ["helper<2"]
"""


@pytest.fixture
def index(tmp_path):
    need(find_spec("uv") is not None or shutil.which("uv") is not None, "uv")
    return Index(tmp_path / "index")


@pytest.fixture
def private(index):
    """The index on a server that wants an account: its address with one that may read, another one, and none."""
    allowed = "Basic " + base64.b64encode(b"reader:pl@nted").decode()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.headers.get("Authorization") == allowed:
                return super().do_GET()
            self.send_response(403 if self.headers.get("Authorization") else 401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(index.folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    yield [f"http://{account}{host}" for account in ("reader:pl%40nted@", "other:pl%40nted@", "")]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory):
    """What uv knows of Pythons is asked once; what it knows of an index is another test's only by its address."""
    return str(tmp_path_factory.mktemp("uv-cache"))


@pytest.fixture
def flagbench(tmp_path, index, uv_cache, monkeypatch, capsys):
    """The command over a copy of the manifests, whose cpu stack is made of the index's packages."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "images" / "locks").mkdir(parents=True)
    (tmp_path / "images" / "locks" / "metadata.toml").write_text(METADATA)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "FLAGBENCH_"))]:
        monkeypatch.delenv(name)
    environment = {
        "FLAGBENCH_MANIFESTS": str(tmp_path / "manifests"),
        "FLAGBENCH_PIP_SOURCE": index.url,
        "PIP_CONFIG_FILE": os.devnull,
        "NETRC": os.devnull,
        "UV_CACHE_DIR": uv_cache,
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CONFIG": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def stack(packages, *, compiled=(), other_python=(), indexes=(), from_base=("torch",), base=BASE):
        file = tmp_path / "manifests" / "stacks" / "cpu.yaml"
        raw = yaml.safe_load(file.read_text())
        # Nobody is asked for a base that has its digest.
        raw["base"]["image"] = base
        raw["build"].update(packages=list(packages), indexes=list(indexes), from_base=list(from_base), optional=[])
        raw["build"]["left_out"]["megatron-core"] = "the index of this test does not have it"
        reason = "a test of what is compiled from its source"
        raw["build"]["compiled"] = [{"name": n, "version": v, "env": {}, "reason": reason} for n, v in compiled]
        why = "a test of a wheel for another Python"
        others = [{"name": n, "version": v, "python": python, "reason": why} for n, v, python in other_python]
        raw["build"]["other_python"] = others
        file.write_text(yaml.safe_dump(raw))

    def run(*arguments):
        # In this process: importing everything anew for each command took most of these tests' time.
        code = main.run(arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    run.stack = stack
    run.lock = lock_path("cpu", tmp_path / "images")
    run.read = lambda: load_lock("cpu", tmp_path / "images")
    run.pins = lambda: [entry.pin for entry in run.read().entries]
    return run


def done(ended):
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_wheel_for_another_python_is_locked_fetched_and_installed(flagbench, index, tmp_path):
    """Alone: what it needs in turn would be for the other Python, too."""
    tag = "cp310-cp310-manylinux2014_x86_64"
    only = index.wheel("only", "0.4.0", ["helper>=1"], tag=tag)
    index.wheel("only", "0.4.0", tag="cp39-cp39-manylinux2014_x86_64")
    toy = index.wheel("toy", "1.0")
    index.wheel("helper", "1.0")
    flagbench.stack(["toy==1.0"], other_python=[("only", "0.4.0", "3.10")])
    done(flagbench("lock", "cpu"))
    assert [(entry.pin, entry.hashes) for entry in flagbench.read().entries] == [
        ("only==0.4.0", (only,)),
        ("toy==1.0", (toy,)),
    ]
    done(flagbench("lock", "cpu", "--check"))
    wheels = tmp_path / "wheels"
    done(flagbench("wheels", "cpu", "--out", str(wheels)))
    assert sorted(path.name for path in wheels.iterdir()) == [f"only-0.4.0-{tag}.whl", "toy-1.0-py3-none-any.whl"]

    # As the Dockerfile has it.
    locked = tmp_path / "requirements.lock"
    locked.write_text(f"only==0.4.0 --hash={only}\n")
    words = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.10", "--target", str(tmp_path / "site")]
    offline = ["--no-index", "--find-links", str(wheels), "--require-hashes", "-r", str(locked)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *words, *offline], check=True)
    found = [path.version for path in importlib.metadata.distributions(path=[str(tmp_path / "site")])]
    assert found == ["0.4.0"]


def test_a_stack_is_locked_and_its_wheelhouse_filled(flagbench, index, tmp_path):
    """What is needed in turn, hashes of the files that fit alone, sources never run, the base's torch left out."""
    marker = tmp_path / "setup-was-run"
    toy = index.wheel("toy", "1.0", ["helper>=1", "torch>=1"])
    fits = index.wheel("helper", "1.5", tag="cp311-cp311-manylinux_2_28_x86_64")
    index.wheel("helper", "1.5", tag="cp311-cp311-win_amd64")
    index.wheel("helper", "1.5", tag="cp312-cp312-manylinux_2_28_x86_64")
    kernel = index.source("kernel", "3.0", SETUP.format(str(marker)))
    flagbench.stack(["toy==1.0"], compiled=[("kernel", "3.0")])

    result = json.loads(done(flagbench("lock", "cpu", "--json")).stdout)["locks"][0]
    assert (result["packages"], result["changed"], result["unresolved"]) == (3, True, [])
    assert result["base"] == {"image": "127.0.0.1:1/base:1", "digest": DIGEST}
    text = flagbench.lock.read_text()
    assert flagbench.read().entries == (
        LockEntry("helper", "1.5", (fits,), ("helper-1.5-cp311-cp311-manylinux_2_28_x86_64.whl",)),
        LockEntry("kernel", "3.0", (kernel,), ("kernel-3.0.tar.gz",)),
        LockEntry("toy", "1.0", (toy,), ("toy-1.0-py3-none-any.whl",)),
    )
    assert index.url not in text
    assert str(tmp_path) not in text

    house = tmp_path / "house"
    files = json.loads(done(flagbench("wheels", "cpu", "-o", str(house), "--json")).stdout)["files"]
    assert [(file["file"], file["fetched"], file["locked"]) for file in files] == [
        ("helper-1.5-cp311-cp311-manylinux_2_28_x86_64.whl", True, True),
        ("kernel-3.0.tar.gz", True, True),
        ("toy-1.0-py3-none-any.whl", True, True),
    ]
    assert not marker.exists()

    # Killed in the middle, with one file damaged: only what is missing or wrong is fetched.
    (house / "toy-1.0-py3-none-any.whl").write_bytes(b"half")
    again = json.loads(done(flagbench("wheels", "cpu", "-o", str(house), "--json")).stdout)["files"]
    assert [file["fetched"] for file in again] == [False, False, True]


def test_a_lock_is_kept_until_an_upgrade_is_asked_for(flagbench, index):
    index.wheel("toy", "1.0", ["helper>=1"])
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    index.wheel("helper", "1.6")
    assert ": unchanged" in done(flagbench("lock", "cpu")).stdout
    assert "helper==1.5" in flagbench.pins()
    done(flagbench("lock", "cpu", "--upgrade"))
    assert "helper==1.6" in flagbench.pins()


def test_a_version_that_no_longer_fits_is_replaced(flagbench, index):
    index.wheel("toy", "1.0", ["helper<2"])
    index.wheel("toy", "2.0", ["helper>=2"])
    index.wheel("helper", "1.5")
    index.wheel("helper", "2.0")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    flagbench.stack(["toy==2.0"])
    assert "stale" in flagbench("lock", "cpu", "--check").stderr
    done(flagbench("lock", "cpu"))
    assert "helper==2.0" in flagbench.pins()
    done(flagbench("lock", "cpu", "--check"))


def test_an_index_out_of_reach(flagbench, index, tmp_path):
    """Its package stays unresolved, what that package is known to need is locked, and fetching it is refused."""
    index.wheel("toy", "1.0", ["torch"])
    index.wheel("helper", "1.5")
    index.wheel("helper", "2.0")
    flagbench.stack(["toy==1.0", "torch==9.9+cpu"], indexes=["https://127.0.0.1:1/whl/cpu"], from_base=[])
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 15
    assert "unresolved: torch==9.9+cpu (https://127.0.0.1:1/whl/cpu could not be reached)" in ended.stdout
    before = flagbench.read()
    assert before.unresolved == (
        Unresolved("torch", "9.9+cpu", reason="https://127.0.0.1:1/whl/cpu could not be reached"),
    )
    assert "helper==1.5" in flagbench.pins()

    refused = flagbench("wheels", "cpu", "-o", str(tmp_path / "house"))
    assert refused.returncode == 2
    assert "--allow-unlocked" in refused.stderr

    # Where the index, or a mirror of it, can be reached, the hash is found, and nothing else changes.
    torch = index.wheel("torch", "9.9+cpu", ["helper<2"])
    done(flagbench("lock", "cpu"))
    after = flagbench.read()
    assert {entry.hashes for entry in after.entries} - {entry.hashes for entry in before.entries} == {(torch,)}
    assert after.unresolved == ()


def test_a_file_that_changed_since_it_was_locked_is_refused(flagbench, index, tmp_path):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    index.folder.joinpath("toy", "index.html").unlink()
    index.wheel("toy", "1.0", ["helper"])
    ended = flagbench("wheels", "cpu", "-o", str(tmp_path / "house"))
    assert ended.returncode == 3
    assert "another file than the one that was locked" in ended.stderr
    assert list((tmp_path / "house").iterdir()) == []


def test_an_index_that_wants_an_account(flagbench, index, private, tmp_path, monkeypatch):
    """Wheels and sources come with its account, which nothing shows; without one, that is what is said."""
    index.wheel("toy", "1.0")
    index.wheel("helper", "1.5")
    index.source("kernel", "3.0", "import torch\n")
    flagbench.stack(["toy==1.0"], compiled=[("kernel", "3.0")])
    allowed, wrong, bare = private
    house = tmp_path / "house"
    locked = done(flagbench("lock", "cpu", "--pip-source", allowed))
    filled = done(flagbench("wheels", "cpu", "-o", str(house), "--pip-source", allowed))
    assert (house / "kernel-3.0.tar.gz").is_file()
    told = locked.stdout + locked.stderr + filled.stdout + filled.stderr + flagbench.lock.read_text()
    assert "pl@nted" not in told
    assert "pl%40nted" not in told
    # Nothing that uv was told with the account is to answer without it.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    for missing, url in (("toy-1.0-py3-none-any.whl", wrong), ("kernel-3.0.tar.gz", bare)):
        (house / missing).rename(tmp_path / missing)
        ended = flagbench("wheels", "cpu", "-o", str(house), "--pip-source", url)
        (tmp_path / missing).rename(house / missing)
        assert ended.returncode == 15, ended.stderr
        name = missing.partition("-")[0]
        assert f"error: {name}==" in ended.stderr
        assert "its index wants an account, or refuses the one it was given" in ended.stderr
        assert "pl%40nted" not in ended.stderr


def test_an_index_that_refuses_is_not_one_without_the_packages(flagbench, index, private):
    """401 without an account, 403 with a wrong one: uv says of both that there is no such version."""
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    _, wrong, bare = private
    for url, status in ((wrong, 403), (bare, 401)):
        ended = flagbench("lock", "cpu", "--pip-source", url)
        assert ended.returncode == 15, ended.stderr
        assert f"a package index wants an account, or refuses the one it was given (HTTP {status})" in ended.stderr
        assert "pl%40nted" not in ended.stderr
    assert not flagbench.lock.exists()


def test_an_index_of_the_manifest_that_refuses(flagbench, index, private):
    """Its package stays unresolved, as where it cannot be reached."""
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0", "torch==9.9+cpu"], from_base=[])
    stack = load_catalog().stacks["cpu"]
    # A manifest names its indexes over https alone; the server of this test has no certificate.
    stack = dataclasses.replace(stack, build=dataclasses.replace(stack.build, indexes=(private[-1],)))
    said = []
    lock = make_lock(stack, LockOptions(Sources((index.url,)), tables={}), said.append)
    assert [entry.pin for entry in lock.entries] == ["toy==1.0"]
    why = f"{private[-1]} refused (HTTP 401)"
    assert f"cpu: {why}" in said
    assert [entry.reason for entry in lock.unresolved] == [f"{why}; what it needs in turn is not known"]


@pytest.mark.parametrize("content", [b"# Made by hand\n", b"\xff\xfe"])
def test_a_malformed_lock_is_replaced_on_request_alone(flagbench, index, content):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    flagbench.lock.write_bytes(content)
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 2
    assert "--upgrade" in ended.stderr
    assert flagbench.lock.read_bytes() == content
    assert "nothing is taken from the earlier lock" in done(flagbench("lock", "cpu", "--upgrade")).stderr
    assert flagbench.pins() == ["toy==1.0"]


def test_packages_that_do_not_go_together(flagbench, index):
    index.wheel("toy", "1.0", ["helper>=2"])
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0", "helper==1.5"])
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 2
    assert "do not go together" in ended.stderr
    assert "cpu.yaml" in ended.stderr
    assert not flagbench.lock.exists()


def test_the_base_digest_can_be_given(flagbench, index):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    assert flagbench("lock", "cpu", "--base-digest", "sha256:" + "5" * 64).returncode == 2
    flagbench.stack(["toy==1.0"], base="127.0.0.1:1/base:1")
    assert flagbench("lock", "cpu").returncode == 15
    done(flagbench("lock", "cpu", "--base-digest", DIGEST))
    assert (flagbench.read().base_image, flagbench.read().base_digest) == ("127.0.0.1:1/base:1", DIGEST)
    assert flagbench("lock", "cpu", "--base-digest", "latest").returncode == 2


def test_two_stacks_cannot_share_a_lock(flagbench, tmp_path):
    """In the name of a lock, a dot is a dash."""
    raw = yaml.safe_load((tmp_path / "manifests" / "stacks" / "a100-cuda11.8.yaml").read_text())
    raw.update(name="a100-cuda11-8", aliases=[])
    (tmp_path / "manifests" / "stacks" / "a100-cuda11-8.yaml").write_text(yaml.safe_dump(raw))
    ended = flagbench("lock", "a100-cuda11-8")
    assert ended.returncode == 2
    assert "a100-cuda11.8" in ended.stderr


def test_a_lock_of_the_old_format_is_converted(flagbench, index):
    """Its versions are kept, a notice says that it is old, and the new file stands beside it."""
    toy = index.wheel("toy", "1.0", ["helper>=1"])
    helper = index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    old = flagbench.lock.with_name("cpu.txt")
    old.write_text(flagbench.read().requirements)
    flagbench.lock.unlink()
    index.wheel("helper", "1.6")
    assert "cpu.txt" in done(flagbench("lock", "cpu", "--check")).stderr
    done(flagbench("lock", "cpu"))
    assert [entry.hashes for entry in flagbench.read().entries] == [(helper,), (toy,)]


@pytest.mark.parametrize("arguments", [[], ["--all", "cpu"], ["nothing-like-it"], ["--all", "--base-digest", "x"]])
def test_usage(flagbench, arguments):
    assert flagbench("lock", *arguments).returncode == 2
