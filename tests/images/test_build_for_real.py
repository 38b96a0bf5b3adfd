"""`flagbench build` on a real Docker Engine: a stack of one small package, and what a person does with it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import need

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
BASE = "debian:bookworm-slim"
EPOCH = 1_700_000_000
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

    def __init__(self, folder: Path, engine: Any) -> None:
        self.folder = folder
        self.engine = engine
        self.stack = f"mini-{uuid.uuid4().hex[:8]}"
        for name in ("manifests", "entrypoints"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.wheel = write_wheel(self.wheels)
        self.authority = folder / "authority.pem"
        self.authority.write_text(AUTHORITY, encoding="utf-8")
        self.sdist = write_sdist(self.wheels)
        self._add_stack()
        self._add_case()

    def build(
        self, image: str, *options: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`flagbench build IMAGE --base BASE OPTIONS...`, with the wheelhouse that the stack needs."""
        done = subprocess.run(
            self.command(image, *options),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def command(self, image: str, *options: str) -> list[str]:
        """The words of the command."""
        given = ["--base", BASE, "--wheelhouse", str(self.wheels), "--epoch", str(EPOCH)]
        return [sys.executable, "-m", "flagbench", "build", f"{image}:{self.stack}".lstrip(":"), *given, *options]

    def environment(self, **more: str) -> dict[str, str]:
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

    def _add_stack(self) -> None:
        from flagbench.catalog.load import load_catalog
        from flagbench.locks.files import write_lock
        from flagbench.locks.model import Lock, LockEntry, inputs_digest

        path = self.folder / "manifests" / "stacks" / f"{self.stack}.yaml"
        plain = yaml.safe_load((ROOT / "manifests" / "stacks" / "cpu.yaml").read_text(encoding="utf-8"))
        plain.update(name=self.stack, title="A stack of one package", aliases=[], expects={"tiny-package": "1.0"})
        kernels = {"name": "kernels", "version": KERNELS, "env": {"FLAG": "a b"}, "reason": "there is no wheel of it"}
        plain["build"]["compiled"] = [kernels]
        plain["build"].update(
            packages=["tiny-package==1.0"], indexes=[], left_out={"deepspeed": "a stack of one package"}
        )
        path.write_text(yaml.safe_dump(plain), encoding="utf-8")
        for other in path.parent.glob("*.yaml"):
            if other != path:
                edited = yaml.safe_load(other.read_text(encoding="utf-8"))
                edited["build"]["left_out"]["kernels"] = "these tests compile it on their stack alone"
                other.write_text(yaml.safe_dump(edited), encoding="utf-8")
        stack = load_catalog(self.folder / "manifests").stacks[self.stack]
        hashed = "sha256:" + hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        source = "sha256:" + hashlib.sha256(self.sdist.read_bytes()).hexdigest()
        entries = (
            LockEntry("kernels", KERNELS, (source,), (self.sdist.name,)),
            LockEntry("tiny-package", "1.0", (hashed,), (self.wheel.name,)),
        )
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


def write_sdist(folder: Path) -> Path:
    """The source of `kernels`, with a build backend of its own that says how many jobs it may run."""
    stem = f"kernels-{KERNELS}"
    metadata = f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS}\n"
    files = {
        "PKG-INFO": metadata,
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(stem=stem, metadata=metadata),
    }
    path = folder / f"{stem}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def write_wheel(folder: Path) -> Path:
    """The wheel of a package of one line, the same bytes every time."""
    files = {
        "tiny_package.py": "WHAT = 'tiny'\n",
        "tiny_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n",
        "tiny_package-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: hashlib.sha256(text.encode()).digest() for name, text in files.items()}
    record = [f"{name},sha256={base64.urlsafe_b64encode(d).rstrip(b'=').decode()}," for name, d in digests.items()]
    files["tiny_package-1.0.dist-info/RECORD"] = "\n".join([*record, "tiny_package-1.0.dist-info/RECORD,,"]) + "\n"
    path = folder / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path


@pytest.fixture(scope="module")
def site(docker_engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The folders; the images of its stack are removed at the end."""
    from flagbench.engines import open_client

    need(docker_engine.inspect(BASE) is not None, f"the image {BASE}")
    made = Site(tmp_path_factory.mktemp("site"), docker_engine)
    yield made
    client = open_client()
    for image in client.images.list(filters={"label": f"dev.flagbench.stack={made.stack}"}):
        client.images.remove(image.id, force=True)
    for image in client.images.list(name="localhost/flagbench/base"):
        # Only the name that building on an image id gave it: the base keeps its own.
        for tag in image.tags:
            if tag.startswith("localhost/flagbench/base:") and len(image.tags) > 1:
                client.images.remove(tag)
    client.close()


@pytest.fixture(scope="module")
def first(site: Site) -> dict[str, Any]:
    """The first build, with an input of every kind; what `--json` says of it."""
    done = site.build(
        "distilbert",
        *("--ca-bundle", str(site.authority)),
        *("--pip-source", f"https://user:{PLANTED}@{MIRROR}/simple"),
        "--json",
        FLAGBENCH_EPOCH="1",  # the option wins
    )
    assert PLANTED not in done.stdout + done.stderr
    (image,) = json.loads(done.stdout)["images"]
    return dict(image)


def test_the_image_is_what_was_said(first: dict[str, Any], site: Site) -> None:
    image = site.engine.inspect(first["image_id"])
    assert image is not None
    assert image.labels["dev.flagbench.context"] == first["context"] == image.env["FLAGBENCH_CONTEXT_DIGEST"]
    assert image.labels["dev.flagbench.epoch"] == str(EPOCH)
    base = site.engine.inspect(BASE)
    assert image.labels["dev.flagbench.base"] == base.content_digest
    assert image.layers[: int(image.labels["dev.flagbench.base.layers"])] == base.layers
    assert not first["skipped"]
    steps = [step["name"] for step in first["tiers"][0]["steps"]]
    assert any("requirements.lock" in step for step in steps)
    for tag in first["tags"] + first["tiers"][0]["tags"]:
        assert site.engine.inspect(tag) is not None


def test_the_bill_of_materials_names_both_kinds_of_packages(first: dict[str, Any]) -> None:
    document = json.loads(Path(first["sbom"]).read_text(encoding="utf-8"))
    urls = {part["purl"] for part in document["components"]}
    assert "pkg:pypi/tiny-package@1.0" in urls
    assert any(url.startswith("pkg:deb/debian/tini@") for url in urls)
    assert any(url.startswith("pkg:deb/debian/libc6@") and "upstream=glibc" in url for url in urls)
    properties = {entry["name"]: entry["value"] for entry in document["metadata"]["component"]["properties"]}
    assert properties["dev.flagbench.lock"] == first["lock"]


def test_nothing_of_the_inputs_is_in_the_image(first: dict[str, Any], site: Site) -> None:
    line = AUTHORITY.splitlines()[2]
    words = [PLANTED, MIRROR, line, site.wheel.name, str(site.wheels)]
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
    base = site.engine.inspect(BASE)
    image_id, content = base.id, base.content_digest
    done = site.build("distilbert", "--base", image_id, "--json")
    (image,) = json.loads(done.stdout)["images"]
    assert image["skipped"]
    assert image["base"] == {"name": f"localhost/flagbench/base:{image_id[7:19]}", "digest": content}


def test_an_edited_entrypoint_changes_one_layer(first: dict[str, Any], site: Site) -> None:
    site.build("distilbert")
    before = site.image()
    edit_entrypoint(site, "# edited")
    (image,) = json.loads(site.build("distilbert", "--json").stdout)["images"]
    after = site.image()
    assert [tier["skipped"] for tier in image["tiers"]] == [True, False]
    assert len(after.layers) == len(before.layers)
    assert [old == new for old, new in zip(before.layers, after.layers)].count(False) == 1


def test_a_second_case_adds_at_most_a_hundredth(first: dict[str, Any], site: Site) -> None:
    site.build("twin")
    heavy, thin = site.image("stack"), site.image("twin")
    assert thin.layers[: len(heavy.layers)] == heavy.layers
    assert 0 < thin.size - heavy.size <= heavy.size / 100


def test_what_a_case_needs_is_compiled_once_for_a_base(first: dict[str, Any], site: Site) -> None:
    """In a stage of its own; when the stack below it has changed, the wheel that was kept is installed again."""
    site.build("twin")
    before = site.image("stack").id
    manifest = site.folder / "manifests" / "stacks" / f"{site.stack}.yaml"
    plain = manifest.read_text(encoding="utf-8")
    changed = yaml.safe_load(plain)
    changed["build"]["env"]["CHANGED"] = "1"
    manifest.write_text(yaml.safe_dump(changed), encoding="utf-8")
    try:
        again = site.build("twin")
        assert site.image("stack").id != before, "its stack is another"
        assert "taken from an earlier build" in again.stderr
        assert COMPILES not in again.stderr
        again = site.build("twin", "--no-cache")
        assert "taken from an earlier build" not in again.stderr
        assert COMPILES in again.stderr
        files = every_file(site.engine.save(site.image("twin").id))
        assert [content for name, content in files if name.endswith("/kernels.py")] == [b"FLAG = 'a b'"]
    finally:
        manifest.write_text(plain, encoding="utf-8")


def test_two_builds_at_once_make_one_image(first: dict[str, Any], site: Site) -> None:
    edit_entrypoint(site, "# edited again")
    processes = [
        subprocess.Popen(
            site.command("distilbert"),
            env=site.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [(process.communicate(), process.returncode) for process in processes]
    assert [code for _, code in ended] == [0, 0], ended
    states = sorted(out.split("  ")[1] for (out, _), _ in ended)
    assert states == ["built", "up to date"]
    assert {found for (out, _), _ in ended for found in re.findall(r"sha256:\w+", out)} == {site.image().id}


def test_a_failing_step_is_told_and_nothing_is_tagged(first: dict[str, Any], site: Site) -> None:
    template = site.folder / "fails.j2"
    template.write_text(
        '{% extends "stack.j2" %}{% block base_check %}\nRUN echo about to fail && exit 3\n{% endblock %}\n',
        encoding="utf-8",
    )
    before = site.image()
    done = site.build("distilbert", "--template", str(template), check=False)
    assert done.returncode == 8
    assert "about to fail\n" in done.stderr
    assert "error: cannot build: a command ended with exit code 3" in done.stderr
    assert done.stdout == ""
    assert site.image() == before


def test_an_interrupt_stops_the_step(first: dict[str, Any], site: Site) -> None:
    template = site.folder / "waits.j2"
    template.write_text(
        '{% extends "stack.j2" %}{% block base_check %}\nRUN echo waiting && sleep 600\n{% endblock %}\n',
        encoding="utf-8",
    )
    before = site.image()
    with subprocess.Popen(
        site.command("distilbert", "--template", str(template)),
        env=site.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(line.rstrip().endswith(" waiting") and "RUN" not in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 7
    assert "nothing was tagged" in err
    assert out == ""
    assert site.image() == before


def test_another_wheel_than_the_locked_one_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / site.wheel.name).write_bytes(site.wheel.read_bytes() + b" ")
    done = site.build("distilbert", "--wheelhouse", str(tmp_path), "--no-cache", check=False)
    assert done.returncode == 2
    assert f"not the locked files: {site.wheel.name}" in done.stderr
    assert f"flagbench wheels {site.stack}" in done.stderr


def test_two_builds_of_one_time_have_equal_layers(first: dict[str, Any], site: Site) -> None:
    """The first build's files are those that the site had then: the edits of other tests are taken back."""
    from flagbench.engines.reproducible import differences, layers_of

    shutil.copy(ROOT / "entrypoints" / EDITED, site.folder / "entrypoints" / EDITED)
    (again,) = json.loads(site.build("distilbert", "--no-cache", "--json").stdout)["images"]
    assert again["context"] == first["context"]
    one, two = (layers_of(site.engine.save(image["image_id"]), EPOCH) for image in (first, again))
    assert [layer.digest for layer in one] == [layer.digest for layer in two], differences(one, two)


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
