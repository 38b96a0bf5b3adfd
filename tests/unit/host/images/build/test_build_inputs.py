"""Inputs of a build: each checked, put where the image's installer looks, and credentials known for hiding."""

import configparser

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.build_options import BuildOptions, make_inputs, pip_configuration, secrets
from flagbench_core.exit_codes import ExitCode


def test_each_option_has_its_place(ca_bundle, wheelhouse, mini_lock):
    options = BuildOptions(
        pip_source=("https://mirror.example/simple",),
        apt_source="http://mirror.example/debian",
        ca_bundle=ca_bundle,
        wheelhouse=wheelhouse,
    )
    assert make_inputs(BuildOptions(), mini_lock()) == {}
    inputs = make_inputs(options, mini_lock())
    assert inputs["pip.conf"] == b"[global]\nindex-url = https://mirror.example/simple\n", "further indexes stay"
    assert inputs["ca.crt"] == ca_bundle.read_bytes()
    assert inputs["apt/url"] == b"http://mirror.example/debian"
    assert set(inputs) == {"ca.crt", "pip.conf", "apt/url", "wheels/psutil-7.2.2-py3-none-any.whl"}


def test_pip_reads_its_configuration_as_it_was_meant():
    urls = ("http://user:p%40ss@one.example:8080/simple", "https://two.example/a%20b", "http://three.example/")
    parsed = configparser.RawConfigParser()
    parsed.read_string(pip_configuration(urls).decode())
    assert parsed["global"]["index-url"] == urls[0]
    assert parsed["global"]["extra-index-url"].split() == list(urls[1:])
    assert parsed["global"]["trusted-host"].split() == ["one.example:8080", "three.example"]


def test_certificates_are_read_as_they_are(ca_bundle, mini_lock):
    """What stands between them may be in any language."""
    text = f"# Főtanúsítvány\n{ca_bundle.read_text()}"
    ca_bundle.write_text(text, encoding="utf-8")
    assert make_inputs(BuildOptions(ca_bundle=ca_bundle), mini_lock()) == {"ca.crt": text.encode()}


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nMIIB", b"\xff"])
def test_a_file_without_certificates(content, tmp_path, mini_lock):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FlagbenchError, match=f"--ca-bundle {path}") as refused:
        make_inputs(BuildOptions(ca_bundle=path), mini_lock())
    assert refused.value.code is ExitCode.USAGE


def test_a_sources_list_is_taken_as_it_is(tmp_path, mini_lock):
    path = tmp_path / "sources.list"
    path.write_text("# ours\n\ndeb https://mirror.example/debian bookworm main\n", encoding="utf-8")
    assert make_inputs(BuildOptions(apt_source=str(path)), mini_lock()) == {"apt/sources.list": path.read_bytes()}


def test_credentials_are_known_wherever_they_stand(tmp_path):
    sources = tmp_path / "sources.list"
    sources.write_text("deb https://apt:aptword@mirror.example/debian bookworm main\n", encoding="utf-8")
    options = BuildOptions(
        pip_source=("https://user:p%40ss@a.example/", "https://token@b.example/"), apt_source=str(sources)
    )
    found = secrets(options, {"https_proxy": "http://me:proxyword@proxy.example:3128", "OTHER": "http://x:y@z/"})
    assert set(found) == {
        "user:p%40ss", "user:p@ss", "p%40ss", "p@ss", "token", "apt:aptword", "aptword", "me:proxyword", "proxyword",
    }  # fmt: skip
    assert [len(secret) for secret in found] == sorted((len(secret) for secret in found), reverse=True)
