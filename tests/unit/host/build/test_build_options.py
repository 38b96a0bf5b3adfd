"""Options of a build: what can be meant is taken, anything else is refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench import checkout
from flagbench.build.options import DEFAULT_EPOCH, BuildOptions, make_options
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.urls import check_url
from flagbench.render import stack as rendered_stack


def test_nothing_given_is_the_defaults() -> None:
    assert make_options(environment={}) == BuildOptions()


def test_an_empty_text_counts_as_not_given() -> None:
    options = make_options(base="", pip_source=[""], ca_bundle="", wheelhouse="", epoch="", environment={})
    assert options == BuildOptions()


def test_the_default_time_is_the_one_that_dockerfiles_carry() -> None:
    assert DEFAULT_EPOCH == rendered_stack.EPOCH


@pytest.mark.parametrize(
    "base",
    [
        "debian:bookworm-slim",
        "registry.example:5000/a/b_c:1.0",
        "a@sha256:" + "0" * 64,
        "sha256:" + "f" * 64,
        "0123456789ab",
    ],
)
def test_a_base_is_a_reference_or_an_id(base: str) -> None:
    assert make_options(base=base, environment={}).base == base


@pytest.mark.parametrize(
    "base", ["-x", "a b", "a\nRUN evil", "$(touch x)", "`id`", "a;b", "{{ x }}", "é", "a'b", 'a"b']
)
def test_what_is_no_reference_is_refused(base: str) -> None:
    with pytest.raises(FlagbenchError) as refused:
        make_options(base=base, environment={})
    assert "--base" in refused.value.message
    assert refused.value.code is ExitCode.USAGE


@given(st.text(min_size=1))
def test_no_base_brings_a_second_word(text: str) -> None:
    try:
        base = make_options(base=text, environment={}).base
    except FlagbenchError:
        return
    assert base == text
    assert base.isascii()
    assert base.split() == [base]
    assert not set(base) & set("$`'\"\\;&|<>(){}")


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64/v8"])
def test_platforms(platform: str) -> None:
    assert make_options(platform=platform, environment={}).platform == platform


@pytest.mark.parametrize("platform", ["linux", "linux/amd64\n", "linux/amd 64", "/", "linux/amd64/v8/x"])
def test_what_is_no_platform_is_refused(platform: str) -> None:
    with pytest.raises(FlagbenchError) as refused:
        make_options(platform=platform, environment={})
    assert "--platform" in refused.value.message


def test_urls_may_hold_credentials_that_no_message_repeats() -> None:
    url = "https://user:p%40ss@mirror.example:8443/simple/"
    assert check_url(url, "--pip-source") == url
    with pytest.raises(FlagbenchError) as refused:
        check_url("https://user:planted@mirror.example/a b", "--pip-source")
    assert "planted" not in refused.value.message + refused.value.remedy


@pytest.mark.parametrize(
    "url",
    ["ftp://a/b", "file:///etc", "https://", "mirror", "https://a/\nextra-index-url = https://b", "https://a/$(x y)",
     "https://[::1", "https://a:99999/", "https://a/'x'", "https://a/{{x}}", "https://ä/"],
)  # fmt: skip
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(FlagbenchError) as refused:
        make_options(pip_source=[url], environment={})
    assert "--pip-source" in refused.value.message


def test_files_and_folders_have_to_exist(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    options = make_options(ca_bundle=str(file), wheelhouse=str(tmp_path), apt_source=str(file), environment={})
    assert (options.ca_bundle, options.wheelhouse, options.apt_source) == (file, tmp_path, file)
    with pytest.raises(FlagbenchError) as refused:
        make_options(ca_bundle=str(tmp_path), environment={})
    assert "--ca-bundle" in refused.value.message
    with pytest.raises(FlagbenchError) as refused:
        make_options(wheelhouse=str(file), environment={})
    assert "--wheelhouse" in refused.value.message
    for name in ("n" * 5000, "~nobody-of-this-name/wheels"):
        with pytest.raises(FlagbenchError) as refused:
            make_options(wheelhouse=name, environment={})
        assert "--wheelhouse" in refused.value.message
    with pytest.raises(FlagbenchError) as refused:
        make_options(apt_source=str(tmp_path / "none"), environment={})
    assert "--apt-source" in refused.value.message


def test_an_apt_source_may_be_an_address() -> None:
    options = make_options(apt_source="http://mirror.example/debian", environment={})
    assert options.apt_source == "http://mirror.example/debian"


def test_the_time_is_the_option_then_the_environment() -> None:
    environment = {"SOURCE_DATE_EPOCH": "1700000000"}
    assert make_options(environment=environment).epoch == 1_700_000_000
    assert make_options(epoch="1800000000", environment=environment).epoch == 1_800_000_000


@pytest.mark.parametrize("epoch", ["-1", "0", "315532799", "1e9", "yesterday", "99999999999999", " 1", "١٢٣٤٥٦٧٨٩"])
def test_a_time_that_no_archive_holds_is_refused(epoch: str) -> None:
    with pytest.raises(FlagbenchError) as refused:
        make_options(epoch=epoch, environment={})
    assert "--epoch" in refused.value.message


def test_the_time_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "_git", lambda *arguments: "1766000000")
    assert make_options(epoch="commit", environment={}).epoch == 1_766_000_000
    monkeypatch.setattr(checkout, "_git", lambda *arguments: None)
    with pytest.raises(FlagbenchError) as refused:
        make_options(epoch="commit", environment={})
    assert "--epoch commit" in refused.value.message
