"""Certificates that docker has of a registry are trusted, beside those of the public."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from flagbench.oci.certificates import trusted


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A registry's certificates are in a file until the process ends; a worker of pytest ends without removing it.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_docker_s_certificates_of_a_registry_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".docker" / "certs.d" / "r.example:5000"
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nours\n")
    assert trusted("r.example") is None
    assert trusted("") is None, "Docker Hub"
    bundle = trusted("r.example:5000")
    assert bundle is not None
    assert "ours" in bundle.read_text()


@pytest.mark.parametrize("configured", ["folder", "missing"])
def test_other_hosts_than_that_of_docker_s_certificate_are_trusted_too(
    configured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, public = tmp_path / ".docker" / "certs.d" / configured, tmp_path / "public"
    for each in (folder, public):
        each.mkdir(parents=True)
    (folder / "ca.crt").write_text("ours")
    (public / "ca.pem").write_text("of the public")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(public if configured == "folder" else tmp_path / "nothing"))
    bundle = trusted(configured)
    assert bundle is not None
    assert ("of the public" if configured == "folder" else "-----BEGIN CERTIFICATE-----") in bundle.read_text()
    assert "ours" in bundle.read_text()
