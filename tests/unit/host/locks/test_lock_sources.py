"""Where packages come from: pip's configuration for uv, the options over both, and what an option may name."""

import sys

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.sources import Sources, certificates, check_url, parse_pip_configuration

LISTING = """\
:env:.find-links='/wheels /more'
global.cert='/etc/ca.crt'
global.find-links='/old'
global.index-url='https://mirror.example/simple'
install.extra-index-url='https://a.example/s\\nhttps://b.example/s'
global.extra-index-url='https://c.example/s'
list.format='columns'
global.timeout='180'
"""


@pytest.fixture
def pip_settings(monkeypatch):
    monkeypatch.setattr(Sources, "pip", parse_pip_configuration(LISTING))


def test_pips_settings_reach_uv_the_nearest_first(pip_settings):
    assert Sources(environ={}).uv_environment(["https://vendor.example/whl"]) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://vendor.example/whl https://a.example/s https://b.example/s",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/ca.crt",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_uvs_own_settings_beat_pips(pip_settings):
    own = {"UV_DEFAULT_INDEX": "https://uv.example", "UV_INDEX": "https://x.example", "UV_FIND_LINKS": "/uv"}
    assert Sources(environ=own).uv_environment([]).items() >= own.items()


def test_older_names_of_uvs_settings_are_honoured():
    old = {"UV_INDEX_URL": "https://old.example", "UV_EXTRA_INDEX_URL": "https://e.example", "PATH": "/bin"}
    assert Sources(environ=old).uv_environment(["https://v.example"]) == {
        "UV_DEFAULT_INDEX": "https://old.example",
        "UV_INDEX": "https://v.example https://e.example",
        "PATH": "/bin",
    }


def test_options_beat_everything(pip_settings, ca_bundle):
    """Further indexes are asked instead of the stack's."""
    indexes = ("https://one.example/s", "https://two.example/s")
    sources = Sources(indexes, ca_bundle, {"UV_DEFAULT_INDEX": "https://uv.example"})
    environment = sources.uv_environment(["https://vendor.example/whl"])
    assert environment["UV_DEFAULT_INDEX"] == "https://one.example/s"
    assert environment["UV_INDEX"] == "https://two.example/s https://a.example/s https://b.example/s"
    assert environment["SSL_CERT_FILE"] == str(ca_bundle)
    pip = sources.pip_environment()
    assert pip["PIP_INDEX_URL"] == "https://one.example/s"
    assert pip["PIP_EXTRA_INDEX_URL"] == "https://two.example/s"
    assert pip["PIP_CERT"] == str(ca_bundle)


def test_without_options_pip_is_left_alone():
    assert Sources(environ={"A": "b"}).pip_environment() == {"A": "b"}


def test_an_empty_variable_is_not_an_option():
    assert Sources.chosen([""], "").indexes == ()
    assert Sources.chosen(None, None).ca_bundle is None


def test_pip_of_this_python_is_asked(real_pip, tmp_path, monkeypatch):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://asked.example/simple\n")
    environ = {"PIP_CONFIG_FILE": str(config), "PATH": "/usr/bin:/bin", "PIP_TIMEOUT": "7"}
    found = Sources(environ=environ).pip
    assert (found["index-url"], found["timeout"]) == ("https://asked.example/simple", "7")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert Sources(environ={}).pip == {}, "a Python without pip"


@pytest.mark.parametrize("url", ["not a url", "https://a b", "simple", "https://a\nUV_X=1"])
def test_an_index_that_is_no_url(url):
    with pytest.raises(FlagbenchError, match="--pip-source"):
        Sources((url,))


def test_a_folder_is_an_index_here_and_not_in_an_images_build():
    assert Sources(("file:///srv/index",)).indexes == ("file:///srv/index",)
    with pytest.raises(FlagbenchError):
        check_url("file:///srv/index", "--pip-source")


def test_a_bundle_is_read_as_it_is(ca_bundle):
    """What stands between certificates may be in any language."""
    text = f"# Főtanúsítvány\n{ca_bundle.read_text()}"
    ca_bundle.write_text(text, encoding="utf-8")
    assert certificates(ca_bundle) == text.encode()


KEY = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMIIB", b"\xff", KEY, b"{bundle}" + KEY]
)
def test_another_file_is_refused(content, ca_bundle, tmp_path):
    """One that is not there, without certificates, or with a private key."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content.replace(b"{bundle}", ca_bundle.read_bytes()))
    with pytest.raises(FlagbenchError) as caught:
        Sources(ca_bundle=path)
    assert f"--ca-bundle {path}" in caught.value.message
    assert "PEM" in caught.value.remedy
    assert caught.value.code is ExitCode.USAGE
