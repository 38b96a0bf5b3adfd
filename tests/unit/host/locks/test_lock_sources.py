"""Where packages come from: pip's configuration for uv, and the options over both."""

import sys

import pytest

from flagbench.errors import FlagbenchError
from flagbench.locks.sources import (
    Sources,
    parse_pip_configuration,
    pip_configuration,
    pip_environment,
    uv_environment,
)

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
PIP = parse_pip_configuration(LISTING)


def test_the_nearest_setting_wins():
    assert PIP == {
        "find-links": "/wheels /more",
        "cert": "/etc/ca.crt",
        "index-url": "https://mirror.example/simple",
        "extra-index-url": "https://a.example/s\nhttps://b.example/s",
        "timeout": "180",
    }


def test_pips_settings_reach_uv():
    assert uv_environment(Sources(environ={}), PIP, ["https://vendor.example/whl"]) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://vendor.example/whl https://a.example/s https://b.example/s",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/ca.crt",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_uvs_own_settings_beat_pips():
    own = {"UV_DEFAULT_INDEX": "https://uv.example", "UV_INDEX": "https://x.example", "UV_FIND_LINKS": "/uv"}
    environment = uv_environment(Sources(environ=own), PIP, [])
    assert {key: environment[key] for key in own} == own


def test_older_names_of_uvs_settings_are_honoured():
    old = {"UV_INDEX_URL": "https://old.example", "UV_EXTRA_INDEX_URL": "https://e.example", "PATH": "/bin"}
    assert uv_environment(Sources(environ=old), {}, ["https://v.example"]) == {
        "UV_DEFAULT_INDEX": "https://old.example",
        "UV_INDEX": "https://v.example https://e.example",
        "PATH": "/bin",
    }


def test_options_beat_everything(ca_bundle):
    sources = Sources(("https://option.example/simple",), ca_bundle, {"UV_DEFAULT_INDEX": "https://uv.example"})
    environment = uv_environment(sources, PIP, [])
    assert environment["UV_DEFAULT_INDEX"] == "https://option.example/simple"
    assert environment["SSL_CERT_FILE"] == str(ca_bundle)
    assert pip_environment(sources)["PIP_INDEX_URL"] == "https://option.example/simple"
    assert pip_environment(sources)["PIP_CERT"] == str(ca_bundle)


def test_further_indexes_stand_for_the_stacks():
    sources = Sources(("https://a.example/s", "https://b.example/s"), None, {})
    environment = uv_environment(sources, PIP, ["https://vendor.example/whl"])
    assert environment["UV_INDEX"] == "https://b.example/s https://a.example/s https://b.example/s"
    assert pip_environment(sources)["PIP_EXTRA_INDEX_URL"] == "https://b.example/s"


def test_an_empty_variable_is_not_an_option():
    assert Sources.chosen([""], "").indexes == ()
    assert Sources.chosen(None, None).ca_bundle is None


def test_without_options_pip_is_left_alone():
    assert pip_environment(Sources(environ={"A": "b"})) == {"A": "b"}


def test_pip_of_this_python_is_asked(tmp_path):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://asked.example/simple\n")
    environ = {"PIP_CONFIG_FILE": str(config), "PATH": "/usr/bin:/bin", "PIP_TIMEOUT": "7"}
    found = pip_configuration(Sources(environ=environ))
    assert found["index-url"] == "https://asked.example/simple"
    assert found["timeout"] == "7"


def test_a_python_without_pip_has_no_configuration(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert pip_configuration(Sources(environ={})) == {}


@pytest.mark.parametrize("url", ["not a url", "https://a b", "simple", "https://a\nUV_X=1"])
def test_an_index_that_is_no_url(url):
    with pytest.raises(FlagbenchError) as caught:
        Sources((url,))
    assert "--pip-source" in str(caught.value)
