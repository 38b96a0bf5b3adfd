"""Options of a build: valid ones are taken as they are meant, others are refused before anything is built."""

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.build.options import BuildOptions, make_options
from flagbench_core.exit_codes import ExitCode


def test_nothing_given_is_the_defaults():
    empty = {"base": "", "pip_source": [""], "apt_source": "", "ca_bundle": "", "wheelhouse": ""}
    assert make_options() == make_options(**empty) == BuildOptions()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("base", "debian:bookworm-slim"),
        ("base", "registry.example:5000/a/b_c:1.0"),
        ("base", "a@sha256:" + "0" * 64),
        ("base", "sha256:" + "f" * 64),
        ("base", "0123456789ab"),
        ("platform", "linux/amd64"),
        ("platform", "linux/arm64/v8"),
        ("apt_source", "http://mirror.example/debian"),
        ("pip_source", ("https://user:p%40ss@mirror.example:8443/simple/",)),
    ],
)
def test_what_is_taken_as_it_is(option, value):
    assert getattr(make_options(**{option: value}), option) == value


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("base", ["-x", "a b", "a\nRUN evil", "$(touch x)", "`id`", "a;b", "{{ x }}", "é", "a'b", 'a"b']),
        ("platform", ["linux", "linux/amd64\n", "linux/amd 64", "/", "linux/amd64/v8/x"]),
        ("pip_source", ["ftp://a/b", "file:///etc", "https://", "mirror", "https://a/\nextra-index-url = https://b",
                        "https://a/$(x y)", "https://[::1", "https://a:99999/", "https://a/'x'", "https://a/{{x}}",
                        "https://ä/", "https://user:planted@mirror.example/a b"]),
        ("apt_source", ["{folder}/none", "ftp://a/b"]),
        ("ca_bundle", ["{folder}", "{folder}/none"]),
        ("template", ["{folder}"]),
        ("wheelhouse", ["{folder}/file", "n" * 5000, "~nobody-of-this-name/wheels"]),
    ],
)  # fmt: skip
def test_what_is_refused_by_name(option, values, tmp_path):
    (tmp_path / "file").touch()
    for value in values:
        value = value.replace("{folder}", str(tmp_path))
        with pytest.raises(FlagbenchError) as refused:
            make_options(**{option: [value] if option == "pip_source" else value})
        assert f"--{option.replace('_', '-')}" in refused.value.message
        assert "planted" not in refused.value.message + refused.value.remedy
        assert refused.value.code is ExitCode.USAGE


def test_files_and_folders_are_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    options = make_options(ca_bundle="file", wheelhouse=".", apt_source="file")
    file = tmp_path / "file"
    assert (options.ca_bundle, options.wheelhouse, options.apt_source) == (file, tmp_path, file)
