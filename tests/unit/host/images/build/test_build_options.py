"""Options of a build: invalid values are refused before anything is built."""

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.build_options import BuildOptions
from flagbench_core.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("base", ["debian:bookworm-slim", "registry.example:5000/a/b_c:1.0", "sha256:" + "f" * 64, "0123456789ab"]),
        ("platform", ["linux/amd64", "linux/arm64/v8"]),
        ("apt_source", ["http://mirror.example/debian", "/etc/apt/sources.list"]),
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
        ("platform", ["linux", "linux/amd64\n", "linux/amd 64", "/", "linux/amd64/v8/x"]),
        ("pip_source", ["ftp://a/b", "file:///etc", "https://", "mirror", "https://a/\nextra-index-url = https://b",
                        "https://a/$(x y)", "https://[::1", "https://a:99999/", "https://a/'x'", "https://a/{{x}}",
                        "https://ä/", "https://user:planted@mirror.example/a b"]),
        ("apt_source", ["ftp://a/b"]),
    ],
)  # fmt: skip
def test_invalid_values(option, values):
    for value in values:
        with pytest.raises(FlagbenchError) as refused:
            BuildOptions(**{option: (value,) if option == "pip_source" else value})
        assert f"--{option.replace('_', '-')}" in refused.value.message
        assert "planted" not in refused.value.message + refused.value.remedy
        assert refused.value.code is ExitCode.USAGE
