"""The bill of materials: everything that is installed, the same bytes every time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flagbench.build.base import Base
from flagbench.build.contents import _SCRIPT, Contents, Package, parse_contents, read_contents
from flagbench.build.result import ImageResult, TierResult
from flagbench.build.sbom import is_sbom_of, sbom_json, write_sbom
from flagbench.errors import ExitCode, FlagbenchError

ID = "sha256:" + "a" * 64
TIER = TierResult(
    "distilbert/mini", ID, "sha256:c", ("flagbench/distilbert:mini", "flagbench/distilbert:mini-1"), False
)
IMAGE = ImageResult("distilbert:mini", (TIER,), Base("debian:1@sha256:b", "sha256:b"), "sha256:l")
CONTENTS = Contents(
    "debian",
    "12",
    (Package("libc6", "2.36-9+deb12u1", "amd64"),),
    (Package("odd", "1", license="Do what you like, please"), Package("psutil", "7.2.2", license="BSD-3-Clause")),
)


def test_the_document_names_every_package_and_what_the_image_was_made_from() -> None:
    document = json.loads(sbom_json(IMAGE, CONTENTS, 315_532_800))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert {part["purl"] for part in document["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:pypi/odd@1",
        "pkg:pypi/psutil@7.2.2",
    }
    licenses = {part["name"]: part.get("licenses") for part in document["components"]}
    assert licenses["psutil"] == [{"expression": "BSD-3-Clause"}]
    assert licenses["odd"][0]["license"] == {"name": "Do what you like, please"}
    assert licenses["libc6"] is None
    subject = document["metadata"]["component"]
    assert (subject["name"], subject["version"], subject["type"]) == ("flagbench/distilbert", "mini-1", "container")
    assert {entry["name"]: entry["value"] for entry in subject["properties"]} == {
        "dev.flagbench.base": "sha256:b",
        "dev.flagbench.base.name": "debian:1",
        "dev.flagbench.context": "sha256:c",
        "dev.flagbench.image": ID,
        "dev.flagbench.lock": "sha256:l",
    }
    assert document["metadata"]["timestamp"] == "1980-01-01T00:00:00+00:00"


def test_the_same_image_has_the_same_document() -> None:
    assert sbom_json(IMAGE, CONTENTS, 315_532_800) == sbom_json(IMAGE, CONTENTS, 315_532_800)


def test_a_document_is_known_for_its_image(tmp_path: Path) -> None:
    path = tmp_path / "new" / "image.cdx.json"
    assert not is_sbom_of(path, ID)
    write_sbom(path, sbom_json(IMAGE, CONTENTS, 315_532_800))
    assert is_sbom_of(path, ID)
    assert not is_sbom_of(path, "sha256:" + "b" * 64)
    assert [entry.name for entry in path.parent.iterdir()] == ["image.cdx.json"]
    path.write_text("[]", encoding="utf-8")
    assert not is_sbom_of(path, ID)


def test_a_document_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FlagbenchError, match="was not written") as failed:
        write_sbom(tmp_path / "file" / "x.json", "{}")
    assert failed.value.code is ExitCode.USAGE


def test_the_script_finds_what_is_installed_here() -> None:
    """Run by this Python as it is run in an image."""
    import subprocess

    def run(image_id: str, command: object) -> bytes:
        assert image_id == ID
        return subprocess.run([sys.executable, "-I", "-B", "-c", _SCRIPT], capture_output=True, check=True).stdout

    contents = read_contents(ID, "/usr/bin/python3", run)
    assert "pytest" in {package.name for package in contents.python}
    assert all(package.version for package in contents.python)


def test_packages_are_sorted_and_stand_once() -> None:
    answer = {
        "distribution": "debian",
        "release": "12",
        "debian": [["b", "1", "all"], ["a", "1", "amd64"], ["b", "1", "all"]],
        "python": [["z", "1", None], ["z", "1", None]],
    }
    contents = parse_contents(answer)
    assert [package.name for package in contents.debian] == ["a", "b"]
    assert contents.python == (Package("z", "1"),)


@pytest.mark.parametrize("answer", [b"", b"not json", b"[]", b"{}"])
def test_an_image_that_answers_nonsense_is_an_error(answer: bytes) -> None:
    with pytest.raises(FlagbenchError, match="does not say what is installed") as failed:
        read_contents(ID, "/usr/bin/python3", lambda image_id, command: answer)
    assert failed.value.code is ExitCode.BUILD_FAILED
