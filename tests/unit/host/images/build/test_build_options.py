"""Options of a build, and its inputs: each checked, and credentials known for hiding."""

from __future__ import annotations

import configparser
import hashlib

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.build_options import (
    BuildOptions,
    credentials_of,
    make_inputs,
    pip_configuration,
    select_package_files,
)
from flagbench.images.lockfile import Lock, Unresolved
from flagbench_core.exit_codes import ExitCode
from packages import lock_entry


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("base", ["debian:bookworm-slim", "registry.example:5000/a/b_c:1.0", "sha256:" + "f" * 64, "0123456789ab"]),
        ("apt_source", ["http://mirror.example/debian", __file__]),
        ("pip_source", ["https://user:p%40ss@mirror.example:8443/simple/"]),
    ],
)
def test_valid_values(option, values):
    for value in values:
        BuildOptions(**{option: (value,) if option == "pip_source" else value})


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("base", ["", "-x", "a b", "a\nRUN evil", "$(touch x)", "`id`", "a;b", "{{ x }}", "é", "a'b", 'a"b']),
        ("pip_source", ["ftp://a/b", "file:///etc", "https://", "mirror", "https://a/\nextra-index-url = https://b",
                        "https://a/$(x y)", "https://[::1", "https://a:99999/", "https://a/'x'", "https://a/{{x}}",
                        "https://ä/", "https://user:planted@mirror.example/a b"]),
        ("apt_source", ["ftp://a/b", "/none"]),
        ("source_url", ["git@host:a/b", "https://a/b c", "https://user:planted@host/a"]),
    ],
)  # fmt: skip
def test_invalid_values(option, values):
    for value in values:
        with pytest.raises(FlagbenchError) as refused:
            BuildOptions(**{option: (value,) if option == "pip_source" else value})
        assert f"--{option.removesuffix('_url').replace('_', '-')}" in refused.value.message
        assert "planted" not in refused.value.message + refused.value.remedy
        assert refused.value.code is ExitCode.USAGE


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
    found = credentials_of(
        options, {"https_proxy": "http://me:proxyword@proxy.example:3128", "OTHER": "http://x:y@z/"}
    )
    assert set(found) == {
        "user:p%40ss", "user:p@ss", "p%40ss", "p@ss", "token", "apt:aptword", "aptword", "me:proxyword", "proxyword",
    }  # fmt: skip
    assert [len(secret) for secret in found] == sorted((len(secret) for secret in found), reverse=True)


FILES = {
    "flash_attn-2.7.3.tar.gz": b"source",
    "numpy-2.2.6-cp310-cp310-manylinux_2_28_x86_64.whl": b"numpy",
    "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl": b"torch",
}


@pytest.fixture
def lock():
    source, numpy, _ = ("sha256:" + hashlib.sha256(content).hexdigest() for content in FILES.values())
    entries = (lock_entry("flash-attn", "2.7.3", source), lock_entry("numpy", "2.2.6", numpy, "sha256:" + "0" * 64))
    unresolved = (Unresolved("torch", "2.6.0+cu118", reason="no network"),)
    return Lock("a100-cuda11.8", "3.10", None, None, "sha256:" + "0" * 64, entries, unresolved)


@pytest.fixture
def house(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_build_is_given_the_locked_files_alone(lock, house):
    for other in ("numpy-2.2.7-py3-none-any.whl", "numpy-2.2.6.tar.gz", "notes.txt", ".hidden"):
        (house / other).write_bytes(b"another")
    assert [path.name for path in select_package_files(house, lock)] == sorted(FILES)


def test_what_is_missing_or_another_file_is_named(lock, house):
    (house / "flash_attn-2.7.3.tar.gz").unlink()
    numpy = next(house.glob("numpy*"))
    numpy.write_bytes(b"num")
    with pytest.raises(FlagbenchError) as refused:
        select_package_files(house, lock)
    assert "flash-attn==2.7.3" in refused.value.message
    assert "numpy==2.2.6" in refused.value.message
    assert refused.value.code is ExitCode.USAGE


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_wheelhouse_is_a_folder(name, lock, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FlagbenchError, match=f"{tmp_path / name} is not a folder") as refused:
        select_package_files(tmp_path / name, lock)
    assert refused.value.code is ExitCode.USAGE
