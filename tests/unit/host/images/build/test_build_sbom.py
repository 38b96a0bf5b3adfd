"""The bill of materials: everything that is installed."""

import json
import sys

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from flagbench.errors import FlagbenchError
from flagbench.images.build import Base
from flagbench.images.lockfile import Lock, LockEntry
from flagbench.images.render.directory import rendered
from flagbench.images.sbom import (
    Contents,
    DebianPackage,
    PythonPackage,
    is_sbom_of,
    read_contents,
    sbom_json,
    write_sbom,
)
from flagbench.images.tags import Tier
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode

ID = "sha256:" + "a" * 64
HASH = "1" * 64
ENTRIES = (
    LockEntry("odd", "1", (f"sha256:{HASH}", "sha256:" + "2" * 64)),
    LockEntry("psutil", "7.2.2", (f"sha256:{HASH}",)),
    LockEntry("torch", "2.9.0+cpu", (f"sha256:{HASH}",)),
)
LOCK = Lock("mini", "3.11", "debian:1", None, "sha256:i", ENTRIES)
TIER = Tier(
    rendered=rendered("distilbert/mini", "", {}),
    digest="sha256:c",
    tags=("flagbench/distilbert:mini", "flagbench/distilbert:mini-1"),
    build_args={},
    labels={},
    platform="linux/amd64",
    base=Base(f"debian:1@{ID}", ID),
    lock=LOCK,
    below="flagbench/stack:mini-1",
)
INDEXES = ("https://one.example/whl/cu118", "https://one.example/whl/cpu")
# Each stands once, in any order.
CONTENTS = Contents(
    "debian",
    "12",
    [
        DebianPackage("tini", "0.19.0-1", "amd64", ""),
        DebianPackage("libc6", "2.36-9+deb12u1", "amd64", "glibc", ("GPL-2", "LGPL-2.1")),
        DebianPackage("libgcc-s1", "12.2.0-14", "amd64", "gcc-12 (12.2.0-13)"),
        DebianPackage("tini", "0.19.0-1", "amd64", ""),
    ],
    [
        PythonPackage("torch", "2.9.0+cpu", ""),
        PythonPackage("apex", "0.1+base", "", ("BSD License",)),
        PythonPackage("odd", "1", ""),
        PythonPackage("PSUtil", "7.2.2", "BSD-3-Clause"),
        PythonPackage("torch", "2.9.0+cpu", ""),
    ],
)


def test_the_document_names_every_package_and_the_inputs():
    text = sbom_json(ID, TIER, LOCK, CONTENTS, INDEXES)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert all(PackageURL.from_string(part["purl"]).to_string() == part["purl"] for part in document["components"])
    assert [part["purl"] for part in document["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:deb/debian/libgcc-s1@12.2.0-14?arch=amd64&distro=debian-12&upstream=gcc-12%4012.2.0-13",
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64&distro=debian-12",
        f"pkg:generic/flagbench@{__version__}",
        "pkg:pypi/apex@0.1%2Bbase",
        "pkg:pypi/odd@1",
        "pkg:pypi/psutil@7.2.2",
        "pkg:pypi/torch@2.9.0%2Bcpu?repository_url=https://one.example/whl/cpu",
    ]
    hashes = {part["name"]: part.get("hashes") for part in document["components"]}
    assert hashes["PSUtil"] == hashes["torch"] == [{"alg": "SHA-256", "content": HASH}]
    assert hashes["odd"] is None, "which of its files was installed is not known"
    licenses = {part["name"]: part.get("licenses") for part in document["components"]}
    assert licenses["PSUtil"] == [{"expression": "BSD-3-Clause"}]
    assert licenses["libc6"] == [{"license": {"name": name}} for name in ("GPL-2", "LGPL-2.1")]
    assert licenses["apex"] == [{"license": {"name": "BSD License"}}]
    assert licenses["tini"] is None
    subject = document["metadata"]["component"]
    assert (subject["name"], subject["version"], subject["type"]) == ("flagbench/distilbert", "mini-1", "container")
    assert {entry["name"]: entry["value"] for entry in subject["properties"]} == {
        "dev.flagbench.base": ID,
        "dev.flagbench.base.name": "debian:1",
        "dev.flagbench.context": "sha256:c",
        "dev.flagbench.image": ID,
        "dev.flagbench.lock": LOCK.digest,
    }


def test_a_document_is_known_for_its_image(tmp_path):
    path = tmp_path / "new" / "image.cdx.json"
    assert not is_sbom_of(path, ID)
    write_sbom(path, sbom_json(ID, TIER, LOCK, CONTENTS, INDEXES))
    assert is_sbom_of(path, ID)
    assert not is_sbom_of(path, "sha256:" + "b" * 64)
    assert [entry.name for entry in path.parent.iterdir()] == ["image.cdx.json"]
    for other in ("[]", "[" * 200_000):
        path.write_text(other, encoding="utf-8")
        assert not is_sbom_of(path, ID)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """`docker(SCRIPT)`: a docker command that runs a line of shell, whose "$@" are the interpreter's arguments."""
    path = tmp_path / "docker"

    def make(script):
        path.write_text(f"#!/bin/sh\nshift 6\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    monkeypatch.setenv("FLAGBENCH_DOCKER", str(path))
    return make


def test_the_script_finds_what_is_installed_here(docker):
    """Run by this Python as it is run in an image."""
    docker(f'exec {sys.executable} "$@"')
    contents = read_contents(ID, sys.executable)
    assert "pytest" in {package.name for package in contents.python}
    assert all(package.version for package in contents.python)
    assert all(package.license or package.licenses for package in contents.python if package.name == "pytest")


@pytest.mark.parametrize("script", ["", "echo not json", "echo '{}'", "echo it broke >&2; exit 125"])
def test_an_image_that_answers_nonsense_is_an_error(script, docker):
    docker(script)
    with pytest.raises(FlagbenchError) as failed:
        read_contents(ID, "/usr/bin/python3")
    assert failed.value.code is ExitCode.BUILD_FAILED
