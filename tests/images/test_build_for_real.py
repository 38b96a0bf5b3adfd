"""`flagbench build` on a real Docker Engine: a stack of one small package, and what a person does with it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.images.lockfile import Lock, LockEntry, inputs_digest, write_lock
from flagbench.manifests.load import load_catalog
from packages import lock_entry, make_source, make_wheel
from running import need, wait_until

pytest_plugins = ["containers"]
# On one worker, which makes the first build once (`--dist loadgroup`).
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("build")]

ROOT = Path(__file__).parents[2]
PLANTED = "planted" + uuid.uuid4().hex
MIRROR = f"mirror-{uuid.uuid4().hex[:8]}.invalid"
# A version of these tests' own: what an earlier run of them compiled is kept by the engine.
KERNELS = f"1.0.{uuid.uuid4().int % 10**9}"
BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    assert int(os.environ["MAX_JOBS"]) >= 1
    info = "{stem}.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, "{stem}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("kernels.py", "FLAG = %r" % os.environ["FLAG"])
        wheel.writestr(info + "METADATA", {metadata!r})
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "{stem}-py3-none-any.whl"
"""
COMPILES = "Building wheel for kernels"  # pip's words
# A self-signed certificate, made for this file alone.
AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBmTCCAT+gAwIBAgIUNBolpMrD2lvC3fjDwBQXR5+kkhwwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWYW4gYXV0aG9yaXR5IGZvciB0ZXN0czAgFw0yNjExMjEwNTM5
MTJaGA8yMTAwMTAyNDA1MzkxMlowITEfMB0GA1UEAwwWYW4gYXV0aG9yaXR5IGZv
ciB0ZXN0czBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNwVRlyk0DTc3JdJROuJ
+8hQnd09RcWgR53ud3BXHDfSdf97b1A0n+2z2oK5aOZxV1KBN/f+s5lx8EBIbFTD
YKSjUzBRMB0GA1UdDgQWBBR0mUw+15y5QJjNNf/LTciJ8kFdpjAfBgNVHSMEGDAW
gBR0mUw+15y5QJjNNf/LTciJ8kFdpjAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49
BAMCA0gAMEUCIBJTfos4XoJ/gdiTtNoILVzNue6kFbn/nnqf9Sw12QN0AiEA/oLU
XzZBtc0DfJtzoFSPsYeiA8DIa5wjeSSZrrZoXGk=
-----END CERTIFICATE-----
"""


class Site:
    """A checkout's three folders, changed for these tests, and the command that is run on them."""

    def __init__(self, folder: Path, engine: Any, base: str) -> None:
        self.folder = folder
        self.engine = engine
        self.base = base
        self.stack = f"mini-{uuid.uuid4().hex[:8]}"
        for name in ("manifests", "entrypoints"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        tiny = make_wheel("tiny-package", "1.0", {"tiny_package.py": "WHAT = 'tiny'\n"})
        self.wheel_file = tiny[0]
        self.wheel = self._publish("tiny-package", "1.0", *tiny)
        self.source = self._publish("kernels", KERNELS, *make_source("kernels", KERNELS, source_files()))
        self.authority = folder / "authority.pem"
        self.authority.write_text(AUTHORITY, encoding="utf-8")
        self._add_stack()
        self._add_case()

    def build(
        self, case: str, *options: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`flagbench build CASE:STACK --base BASE OPTIONS...`, with the wheelhouse that the stack needs."""
        process = self.start(case, *options, **environment)
        out, err = process.communicate()
        assert not check or process.returncode == 0, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, case: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        """The same, begun in a session of its own, with pipes for what it prints."""
        given = ["--base", self.base, "--wheelhouse", str(self.wheels)]
        return subprocess.Popen(
            [sys.executable, "-m", "flagbench", "build", f"{case}:{self.stack}", *given, *options],
            env=self._environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def first_step(self, step: str) -> Iterator[None]:
        """Within the `with` block, the template of the stack has this step before the others."""
        path = self.folder / "images" / "templates" / "stacks" / f"{self.stack}.j2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{% extends "stack.j2" %}}{{% block base_check %}}\nRUN {step}\n{{% endblock %}}\n')
        try:
            yield
        finally:
            path.unlink()

    def _environment(self, **more: str) -> dict[str, str]:
        """Of the command: the folders of this site, a mirror of Debian where one is set, and no other option."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLAGBENCH_")}
        kept.update({key: os.environ[key] for key in ("FLAGBENCH_APT_SOURCE",) if key in os.environ})
        kept.update(
            PYTHONPATH=str(ROOT / "builder"),
            FLAGBENCH_MANIFESTS=str(self.folder / "manifests"),
            XDG_CACHE_HOME=str(self.folder / "cache"),
            XDG_DATA_HOME=str(self.folder / "data"),
        )
        return {**kept, **more}

    def image(self, name: str = "distilbert") -> Any:
        """What the engine has under the image's main tag."""
        found = self.engine.inspect(f"flagbench/{name}:{self.stack}")
        assert found is not None
        return found

    def _publish(self, package: str, version: str, file: str, content: bytes) -> LockEntry:
        (self.wheels / file).write_bytes(content)
        return lock_entry(package, version, "sha256:" + hashlib.sha256(content).hexdigest())

    def _add_stack(self) -> None:
        path = self.folder / "manifests" / "stacks" / f"{self.stack}.yaml"
        plain = yaml.safe_load((ROOT / "manifests" / "stacks" / "cpu.yaml").read_text(encoding="utf-8"))
        plain.update(name=self.stack, title="A stack of one package", aliases=[], expects={"tiny-package": "1.0"})
        kernels = {"name": "kernels", "version": KERNELS, "env": {"FLAG": "a b"}, "reason": "there is no wheel of it"}
        plain["build"]["compiled"] = [kernels]
        none = dict.fromkeys(("deepspeed", "flash-attn", "megatron-core"), "a stack of one package")
        plain["build"].update(packages=["tiny-package==1.0"], indexes=[], optional=[], left_out=none)
        path.write_text(yaml.safe_dump(plain), encoding="utf-8")
        for other in path.parent.glob("*.yaml"):
            if other != path:
                edited = yaml.safe_load(other.read_text(encoding="utf-8"))
                edited["build"]["left_out"]["kernels"] = "these tests compile it on their stack alone"
                other.write_text(yaml.safe_dump(edited), encoding="utf-8")
        stack = load_catalog(self.folder / "manifests").stacks[self.stack]
        entries = (self.source, self.wheel)
        lock = Lock(self.stack, stack.python, stack.base_image, None, inputs_digest(stack), entries)
        write_lock(lock, self.folder / "images")

    def _add_case(self) -> None:
        """`twin`, the case distilbert under another name, which needs `kernels`."""
        cases = self.folder / "manifests" / "cases"
        plain = yaml.safe_load((cases / "distilbert.yaml").read_text(encoding="utf-8"))
        (cases / "twin.yaml").write_text(
            yaml.safe_dump({**plain, "name": "twin", "needs": ["kernels"]}), encoding="utf-8"
        )
        package = self.folder / "entrypoints" / "flagbench_cases" / "cases"
        shutil.copytree(package / "distilbert", package / "twin")


def source_files() -> dict[str, str]:
    """The source of `kernels`, with a build backend of its own that says how many jobs it may run."""
    metadata = f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS}\n"
    return {
        "PKG-INFO": metadata,
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(stem=f"kernels-{KERNELS}", metadata=metadata),
    }


@pytest.fixture(scope="module")
def site(
    docker_client: Any, docker_engine: Any, debian: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The folders; the images of its stack are removed at the end."""
    made = Site(tmp_path_factory.mktemp("site"), docker_engine, debian)
    yield made
    # Listed without a look at each, which other tests may remove meanwhile.
    api = docker_client.api
    for image in api.images(filters={"label": f"dev.flagbench.stack={made.stack}"}, quiet=True):
        api.remove_image(image, force=True)
    for image in api.images(name="localhost/flagbench/base"):
        # Only the name that building on an image id gave it: the base keeps its own.
        for tag in image["RepoTags"]:
            if tag.startswith("localhost/flagbench/base:") and len(image["RepoTags"]) > 1:
                api.remove_image(tag)


@pytest.fixture(scope="module")
def first(site: Site) -> dict[str, Any]:
    """The first build, with an input of every kind; what `--json` says of it."""
    done = site.build(
        "distilbert",
        *("--ca-bundle", str(site.authority)),
        *("--pip-source", f"https://user:{PLANTED}@{MIRROR}/simple"),
        "--json",
    )
    assert PLANTED not in done.stdout + done.stderr
    (image,) = json.loads(done.stdout)["images"]
    return dict(image)


def test_the_image_is_what_was_said(first: dict[str, Any], site: Site) -> None:
    image = site.engine.inspect(first["image_id"])
    assert image is not None
    assert image.labels["dev.flagbench.context"] == first["context"]
    assert image.labels["dev.flagbench.lock"] == first["lock"]
    base = site.engine.inspect(site.base)
    assert image.labels["dev.flagbench.base"] == base.id
    assert image.layers[: len(base.layers)] == base.layers
    assert not first["skipped"]
    for tag in first["tags"] + first["tiers"][0]["tags"]:
        assert site.engine.inspect(tag) is not None


def test_nothing_of_the_inputs_is_in_the_image(first: dict[str, Any], site: Site) -> None:
    line = AUTHORITY.splitlines()[2]
    words = [PLANTED, MIRROR, line, site.wheel_file, str(site.wheels)]
    found: set[str] = set()
    names: set[str] = set()
    for name, content in every_file(site.engine.save(first["image_id"])):
        names.add(name)
        found.update(word for word in words if word.encode() in content)
    assert any(name.endswith("tiny_package.py") for name in names)  # the search looks where it should
    assert not found
    assert not [name for name in names if name.startswith(("mnt/", "media/"))]


def test_a_second_build_does_nothing(first: dict[str, Any], site: Site) -> None:
    site.build("distilbert")  # what other tests have edited
    done = site.build("distilbert")
    assert done.stdout == f"flagbench/distilbert:{site.stack}  up to date  {site.image().id}\n"
    assert done.stderr == ""


def test_a_base_named_by_its_id_is_the_same_base(first: dict[str, Any], site: Site) -> None:
    site.build("distilbert")
    image_id = site.engine.inspect(site.base).id
    done = site.build("distilbert", "--base", image_id, "--json")
    (image,) = json.loads(done.stdout)["images"]
    assert image["skipped"]
    assert image["base"] == {"name": f"localhost/flagbench/base:{image_id[7:19]}", "digest": image_id}


def test_an_edited_entrypoint_changes_one_layer(first: dict[str, Any], site: Site) -> None:
    site.build("distilbert")
    before = site.image()
    edit_entrypoint(site, "# edited")
    (image,) = json.loads(site.build("distilbert", "--json").stdout)["images"]
    after = site.image()
    assert [tier["skipped"] for tier in image["tiers"]] == [True, False]
    assert len(after.layers) == len(before.layers)
    assert [old == new for old, new in zip(before.layers, after.layers)].count(False) == 1


def test_what_a_case_needs_is_compiled_once_for_a_base(first: dict[str, Any], site: Site) -> None:
    """In a stage of its own; when the stack below it has changed, the wheel that was kept is installed again."""
    assert COMPILES in site.build("twin").stderr
    before = site.image("stack").id
    manifest = site.folder / "manifests" / "stacks" / f"{site.stack}.yaml"
    plain = manifest.read_text(encoding="utf-8")
    changed = yaml.safe_load(plain)
    changed["build"]["env"]["CHANGED"] = "1"
    try:
        manifest.write_text(yaml.safe_dump(changed), encoding="utf-8")
        again = site.build("twin")
        assert site.image("stack").id != before
        assert "taken from an earlier build" in again.stderr
        assert COMPILES not in again.stderr
        files = every_file(site.engine.save(site.image("twin").id))
        assert [content for name, content in files if name.endswith("/kernels.py")] == [b"FLAG = 'a b'"]
    finally:
        manifest.write_text(plain, encoding="utf-8")


def test_a_failing_step_is_told_and_nothing_is_tagged(first: dict[str, Any], site: Site) -> None:
    before = site.image()
    with site.first_step("echo about to fail && exit 3"):
        done = site.build("distilbert", check=False)
    assert done.returncode == 8
    assert "about to fail\n" in done.stderr
    assert "exit code: 3" in done.stderr.partition("error: ")[2]
    assert done.stdout == ""
    assert site.image() == before


def running(marker: str) -> bool:
    """Whether the step of that marker runs on this machine."""
    step = f"tail -f /dev/null {marker}\0".replace(" ", "\0").encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == step:
                return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_step_and_the_client(first: dict[str, Any], site: Site, number: int) -> None:
    need(Path("/var/run/docker.sock").exists(), "a Docker Engine on this machine")
    before, marker = site.image(), f"/tmp/{uuid.uuid4().hex}"
    with site.first_step(f"exec tail -f /dev/null {marker}"):
        building = site.start("distilbert")
        try:
            wait_until(lambda: running(marker) or building.poll() is not None, 60)
            building.send_signal(number)
            out, err = building.communicate(timeout=30)
        finally:
            building.kill()
    assert building.returncode == 7
    assert "error: interrupted" in err
    assert out == ""
    wait_until(lambda: not running(marker), 5)
    with pytest.raises(ProcessLookupError):  # nothing is left of its session
        os.killpg(building.pid, 0)
    assert site.image() == before


EDITED = "flagbench_cases/rank/stopwatch.py"


def edit_entrypoint(site: Site, line: str) -> None:
    """Add a line to a file of the image side."""
    with (site.folder / "entrypoints" / EDITED).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def every_file(archive: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of an image: of its layers, and its configuration with the history."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as outer:
        for member in outer:
            file = outer.extractfile(member)
            if file is None:
                continue
            content = file.read()
            yield member.name, content if len(content) < 1_000_000 else b""
            try:
                with tarfile.open(fileobj=io.BytesIO(content)) as layer:
                    for each in layer:
                        inside = layer.extractfile(each) if each.isfile() else None
                        yield each.name, b"" if inside is None else inside.read()
            except tarfile.ReadError:
                pass  # a configuration or a manifest
