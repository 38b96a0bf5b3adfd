"""`flagbench lock` with the real uv over an index laid out in a folder, and a base in a real registry."""

import base64
import functools
import json
import os
import re
import shutil
import subprocess
import threading
import uuid
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from flagbench.cli import main
from flagbench.images.docker import BuildRequest
from flagbench.images.lock import BaseUnknown, find_digest
from flagbench.images.lockfile import DigestOf, Unresolved, load_lock, lock_path, write_lock
from flagbench.images.render.directory import context_tar, make_build_directory
from flagbench.manifests.load import load_catalog
from packages import Index
from running import need

pytest_plugins = ["containers", "registries"]
ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "d" * 64
BASE = f"127.0.0.1:1/base:1@{DIGEST}"
SETUP = "open({!r}, 'w').close()\nimport torch\n"
SETTINGS = """\
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


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory):
    """What uv knows of Pythons is asked once; what it knows of an index is another test's only by its address."""
    return str(tmp_path_factory.mktemp("uv-cache"))


@pytest.fixture
def flagbench(tmp_path, index, uv_cache, monkeypatch, capsys):
    """The command over a copy of the manifests, whose cpu stack is made of the index's packages."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "images" / "locks").mkdir(parents=True)
    (tmp_path / "images" / "locks" / "uv.toml").write_text(SETTINGS)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "FLAGBENCH_"))]:
        monkeypatch.delenv(name)
    environment = {
        "FLAGBENCH_MANIFESTS": str(tmp_path / "manifests"),
        "PIP_CONFIG_FILE": os.devnull,
        "NETRC": os.devnull,
        "UV_CACHE_DIR": uv_cache,
        "UV_DEFAULT_INDEX": index.url,
        "UV_HTTP_RETRIES": "0",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def stack(packages, *, compiled=(), other_python=(), indexes=(), from_base=("torch",), base=BASE):
        file = tmp_path / "manifests" / "stacks" / "cpu.yaml"
        raw = yaml.safe_load(file.read_text())
        # Nobody is asked for a base that has its digest.
        raw["base"].update(image=base, obtain=None if base else "a test of a base that is not public")
        raw["build"].update(packages=list(packages), indexes=list(indexes), from_base=list(from_base), optional=[])
        raw["build"]["left_out"]["megatron-core"] = "the index of this test does not have it"
        reason = "a test of what is compiled from its source"
        raw["build"]["compiled"] = [{"name": n, "version": v, "env": {}, "reason": reason} for n, v in compiled]
        why = "a test of a wheel for another Python"
        others = [{"name": n, "version": v, "python": python, "reason": why} for n, v, python in other_python]
        raw["build"]["other_python"] = others
        file.write_text(yaml.safe_dump(raw))

    def run(*arguments):
        # In this process: importing everything again for each command took most of these tests' time.
        code = main.run(arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    run.stack = stack
    run.file = lock_path("cpu", tmp_path / "images")
    run.manifest = lambda: load_catalog(tmp_path / "manifests").stacks["cpu"]
    run.read = lambda: load_lock(run.manifest(), tmp_path / "images")
    run.hashes = lambda: {entry.pin: entry.hashes for entry in run.read().entries}
    return run


def done(ended):
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_stack_is_locked(flagbench, index, tmp_path):
    """What is needed in turn, hashes of the files that fit alone, sources never run, the base's torch left out."""
    marker = tmp_path / "setup-was-run"
    toy = index.wheel("toy", "1.0", ["helper>=1", "torch>=1"])
    fits = index.wheel("helper", "1.5", tag="cp311-cp311-manylinux_2_28_x86_64")
    index.wheel("helper", "1.5", tag="cp311-cp311-win_amd64")
    index.wheel("helper", "1.5", tag="cp312-cp312-manylinux_2_28_x86_64")
    kernel = index.source("kernel", "3.0", SETUP.format(str(marker)))
    flagbench.stack(["toy==1.0"], compiled=[("kernel", "3.0")])
    (result,) = json.loads(done(flagbench("lock", "cpu", "--json")).stdout)["locks"]
    assert (result["packages"], result["changed"], result["unresolved"]) == (3, True, [])
    assert result["base"] == {"image": "127.0.0.1:1/base:1", "digest": DIGEST, "digest_of": None, "source": None}
    assert flagbench.hashes() == {"helper==1.5": (fits,), "kernel==3.0": (kernel,), "toy==1.0": (toy,)}
    assert not marker.exists()
    assert str(tmp_path) not in flagbench.file.read_text(), "no folder of this machine"
    done(flagbench("lock", "cpu", "--check"))


def test_a_wheel_for_another_python(flagbench, index):
    """Locked alone, since what it needs in turn would be for the other Python too."""
    tag = "cp310-cp310-manylinux2014_x86_64"
    only = index.wheel("only", "0.4.0", ["helper>=1"], tag=tag)
    index.wheel("only", "0.4.0", tag="cp39-cp39-manylinux2014_x86_64")
    toy = index.wheel("toy", "1.0")
    index.wheel("helper", "1.0")
    flagbench.stack(["toy==1.0"], other_python=[("only", "0.4.0", "3.10")])
    done(flagbench("lock", "cpu"))
    assert flagbench.hashes() == {"only==0.4.0": (only,), "toy==1.0": (toy,)}


def test_a_lock_is_kept_until_an_upgrade_is_asked_for(flagbench, index):
    """Neither a newer version nor a further file of the same version is taken."""
    index.wheel("toy", "1.0", ["helper>=1"])
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    before = flagbench.hashes()
    index.wheel("helper", "1.6")
    index.wheel("helper", "1.5", tag="cp311-cp311-manylinux_2_28_x86_64")
    assert ": unchanged" in done(flagbench("lock", "cpu")).stdout
    assert flagbench.hashes() == before
    done(flagbench("lock", "cpu", "--upgrade"))
    assert "helper==1.6" in flagbench.hashes()


def test_a_version_that_no_longer_fits_is_replaced(flagbench, index):
    index.wheel("toy", "1.0", ["helper<2"])
    index.wheel("toy", "2.0", ["helper>=2"])
    index.wheel("helper", "1.5")
    index.wheel("helper", "2.0")
    flagbench.stack(["toy==1.0"])
    done(flagbench("lock", "cpu"))
    flagbench.stack(["toy==2.0"])
    assert flagbench("lock", "cpu", "--check").returncode == 2
    done(flagbench("lock", "cpu"))
    assert set(flagbench.hashes()) == {"helper==2.0", "toy==2.0"}


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/whl/cpu", None])
def test_a_package_of_an_index_out_of_reach(url, flagbench, index, monkeypatch):
    """It stays unresolved, and what it is known to need is locked; where an index has it, only its hash is added."""
    index.wheel("toy", "1.0", ["torch"])
    index.wheel("helper", "1.5")
    index.wheel("helper", "2.0")
    reason = f"{url} could not be reached" if url else "no index has it"
    # Offline, an index of which uv has no copy is one that lacks the package.
    flagbench.stack(["toy==1.0", "torch==9.9+cpu"], indexes=[url or "https://pypi.org/simple"], from_base=[])
    if url is None:
        monkeypatch.setenv("UV_OFFLINE", "1")
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 15
    before = flagbench.read()
    assert before.unresolved == (Unresolved("torch", "9.9+cpu", reason=reason),)
    assert "helper==1.5" in flagbench.hashes()

    torch = index.wheel("torch", "9.9+cpu", ["helper<2"])
    done(flagbench("lock", "cpu"))
    after = flagbench.read()
    assert set(after.entries) - set(before.entries) == {entry for entry in after.entries if entry.hashes == (torch,)}
    assert after.unresolved == ()


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


def test_an_index_that_wants_an_account(flagbench, index, private, monkeypatch):
    """Its account is shown nowhere; an index that refuses access looks like one without the packages."""
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    allowed, *refused = private
    for url in refused:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        ended = flagbench("lock", "cpu")
        assert ended.returncode == 2
        assert "pl%40nted" not in ended.stderr
    assert not flagbench.file.exists()
    monkeypatch.setenv("UV_DEFAULT_INDEX", allowed)
    ended = done(flagbench("lock", "cpu"))
    assert "nted" not in ended.stdout + ended.stderr + flagbench.file.read_text()


def test_an_index_out_of_reach_that_no_manifest_names(flagbench, index, monkeypatch):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    assert flagbench("lock", "cpu").returncode == 15
    assert not flagbench.file.exists()


def test_a_malformed_lock_is_replaced_on_request_alone(flagbench, index):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    flagbench.file.write_bytes(b"\xff\xfe")
    assert flagbench("lock", "cpu").returncode == 2
    assert flagbench.file.read_bytes() == b"\xff\xfe"
    done(flagbench("lock", "cpu", "--upgrade"))
    assert "toy==1.0" in flagbench.hashes()


def test_packages_that_do_not_go_together(flagbench, index):
    index.wheel("toy", "1.0", ["helper>=2"])
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0", "helper==1.5"])
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 2
    assert "cpu.yaml" in ended.stderr
    assert not flagbench.file.exists()


def test_a_package_to_compile_declares_what_it_needs(flagbench, index):
    index.source("kernel", "4.0", "import torch\n")
    flagbench.stack([], compiled=[("kernel", "4.0")])
    ended = flagbench("lock", "cpu")
    assert ended.returncode == 2
    assert "uv.toml" in ended.stderr


def test_the_base_digest_can_be_given(flagbench, index):
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"])
    assert flagbench("lock", "cpu", "--base-digest", "sha256:" + "5" * 64).returncode == 2, "the manifest has another"
    flagbench.stack(["toy==1.0"], base="127.0.0.1:1/base:1")
    assert flagbench("lock", "cpu", "--base-digest", "latest").returncode == 2
    assert flagbench("lock", "cpu").returncode == 15
    assert flagbench.read().base_digest is None
    done(flagbench("lock", "cpu", "--base-digest", DIGEST))
    assert (flagbench.read().base_image, flagbench.read().base_digest) == ("127.0.0.1:1/base:1", DIGEST)
    assert (flagbench.read().base_digest_of, flagbench.read().base_digest_source) == (None, "not known")
    stated = f"{DIGEST}=https://example.com/digests?of=base"
    (result,) = json.loads(
        done(flagbench("lock", "cpu", "--base-digest", stated, "--base-digest-of", "index", "--json")).stdout
    )["locks"]
    source = "https://example.com/digests?of=base"
    assert (result["base"]["digest_of"], result["base"]["source"]) == ("index", source)
    digest = flagbench.read().digest
    assert flagbench("lock", "cpu", "--upgrade").returncode == 0, "what is known stays, if nobody can be asked"
    lock = flagbench.read()
    assert (lock.base_digest, lock.base_digest_of, lock.base_digest_source) == (DIGEST, DigestOf.INDEX, source)
    done(flagbench("lock", "cpu", "--base-digest", DIGEST))
    assert flagbench.read().digest == digest, "who states it is no part of what is locked"


TORCH = "https://127.0.0.1:1/whl/cpu/torch-9.9%2Bcpu-cp311-cp311-linux_x86_64.whl"


def test_the_digest_of_a_wheel_can_be_given(flagbench, index):
    """Of a package whose index is out of reach; later locks keep it."""
    index.wheel("toy", "1.0")
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0", "torch==9.9+cpu"], indexes=["https://127.0.0.1:1/whl/cpu"], from_base=[])
    source = "https://example.com/digests.md"
    done(flagbench("lock", "cpu", "--wheel-digest", f"{TORCH}={DIGEST}={source}"))
    assert flagbench.hashes()["torch==9.9+cpu"] == (DIGEST,)
    assert "helper==1.5" in flagbench.hashes()
    text = flagbench.file.read_text()
    assert {TORCH, source} <= set(re.findall(r'"([^"]+)"', text))
    assert ": unchanged" in done(flagbench("lock", "cpu")).stdout
    done(flagbench("lock", "cpu", "--wheel-digest", f"{TORCH}={DIGEST}"))
    assert 'hash-source = "not known"' in flagbench.file.read_text()


@pytest.mark.parametrize(
    "wheel",
    [
        TORCH,
        f"{TORCH}=latest",
        f"{TORCH}={DIGEST}=nowhere",
        f"torch-9.9+cpu-cp311-cp311-linux_x86_64.whl={DIGEST}",
        f"https://127.0.0.1:1/torch.tar.gz={DIGEST}",
        f"{TORCH.replace('cp311', 'cp312')}={DIGEST}",
        f"{TORCH.replace('x86_64', 'aarch64')}={DIGEST}",
        f"{TORCH.replace('9.9', '9.8')}={DIGEST}",
        f"https://127.0.0.1:1/toy-1.0-py3-none-any.whl={DIGEST}",
    ],
)
def test_the_digest_of_another_wheel(wheel, flagbench, index):
    index.wheel("toy", "1.0")
    index.wheel("helper", "1.5")
    flagbench.stack(["toy==1.0", "torch==9.9+cpu"], indexes=["https://127.0.0.1:1/whl/cpu"], from_base=[])
    assert flagbench("lock", "cpu", "--wheel-digest", wheel).returncode == 2
    assert not flagbench.file.exists()


def test_a_base_that_is_not_public_is_not_missing(flagbench, index):
    """It is said, and nobody can lock it."""
    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"], base=None)
    assert "unresolved: the base" in done(flagbench("lock", "cpu")).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--all", "cpu"],
        ["nothing-like-it"],
        ["--all", "--base-digest", DIGEST],
        ["cpu", "--base-digest-of", "image"],
        ["cpu", "--base-digest", f"{DIGEST}=nowhere"],
    ],
)
def test_usage(flagbench, arguments):
    assert flagbench("lock", *arguments).returncode == 2


@pytest.mark.docker
def test_the_registry_says_the_digest_of_a_base(docker_client, debian, tmp_path, monkeypatch):
    """Of the platform's image, also where a tag has a list of them; with docker's login, and not without."""
    need("FLAGBENCH_TEST_REGISTRY" in os.environ, "a container registry: `.ci/registry start DIR` and DIR/env")
    host, user, password = (os.environ[f"FLAGBENCH_TEST_REGISTRY{name}"] for name in ("", "_USER", "_PASSWORD"))
    account = base64.b64encode(f"{user}:{password}".encode()).decode()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": account}}}))
    name = f"{host}/flagbench-test/base-{uuid.uuid4().hex[:12]}"
    docker_client.images.get(debian).tag(name, "1")
    try:
        docker("push", "-q", f"{name}:1")
        (pushed,) = (each for each in docker_client.images.get(debian).attrs["RepoDigests"] if each.startswith(name))
    finally:
        docker_client.images.remove(f"{name}:1")
    docker("manifest", "create", "--insecure", f"{name}:list", f"{name}:1")
    docker("manifest", "push", "--insecure", f"{name}:list")
    for tag in ("1", "list"):
        assert f"{name}@{find_digest(f'{name}:{tag}', 'linux/amd64')}" == pushed
        with pytest.raises(BaseUnknown, match="linux/arm64"):
            find_digest(f"{name}:{tag}", "linux/arm64")
    with pytest.raises(BaseUnknown, match="no such manifest"):
        find_digest(f"{name}:none", "linux/amd64")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BaseUnknown, match="credentials"):
        find_digest(f"{name}:1", "linux/amd64")
    monkeypatch.setenv("FLAGBENCH_DOCKER", str(tmp_path / "none"))
    with pytest.raises(BaseUnknown):
        find_digest(f"{name}:1", "linux/amd64")


@pytest.mark.docker
def test_an_index_has_the_platform_or_not(registry, docker_engine, debian, flagbench, index, tmp_path):
    """Of an index its image for the platform is locked; without one `lock`, `lock --check` and `build` fail."""
    name = f"{registry.host}/flagbench-test/index-{uuid.uuid4().hex[:12]}"
    context = context_tar(make_build_directory("arm", "FROM scratch\nCOPY file /file\n", {"file": b""}), {})
    docker_engine.build(BuildRequest(context, tags=(f"{name}:arm64",), platform="linux/arm64"))
    docker_engine.tag(debian, f"{name}:amd64")
    for tag in ("arm64", "amd64"):
        docker("push", "-q", f"{name}:{tag}")
        docker("rmi", f"{name}:{tag}")
    image = find_digest(f"{name}:amd64", "linux/amd64")
    indexes = {}
    for tag, images in {"one": ["arm64"], "both": ["arm64", "amd64"]}.items():
        docker("manifest", "create", "--insecure", f"{name}:{tag}", *(f"{name}:{each}" for each in images))
        indexes[tag] = docker("manifest", "push", "--insecure", f"{name}:{tag}").split()[-1]

    index.wheel("toy", "1.0")
    flagbench.stack(["toy==1.0"], base=f"{name}:both")
    assert flagbench("lock", "cpu", "--base-digest", indexes["one"]).returncode == 2
    assert not flagbench.file.exists()
    stated = f"{indexes['both']}=https://example.com/"
    done(flagbench("lock", "cpu", "--base-digest", stated, "--base-digest-of", "index"))
    lock = flagbench.read()
    assert (lock.base_digest, lock.base_digest_of, lock.base_digest_source) == (image, DigestOf.IMAGE, None)
    done(flagbench("lock", "cpu", "--base-digest", f"{image}=https://example.com/"))
    lock = flagbench.read()
    assert (lock.base_digest_of, lock.base_digest_source) == (DigestOf.IMAGE, "https://example.com/")

    # As they are locked where the registry cannot be reached.
    write_lock(replace(lock, base_digest=indexes["both"], base_digest_of=DigestOf.INDEX), tmp_path / "images")
    done(flagbench("lock", "cpu", "--check"))
    for digest_of in (DigestOf.INDEX, None):
        write_lock(replace(lock, base_digest=indexes["one"], base_digest_of=digest_of), tmp_path / "images")
        checked = flagbench("lock", "cpu", "--check")
        assert checked.returncode == 2
        assert "linux/arm64" in checked.stderr
    built = flagbench("build", "cpu")
    assert built.returncode == 8
    assert "--base-digest" in built.stderr


def docker(*arguments):
    ended = subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return ended.stdout
