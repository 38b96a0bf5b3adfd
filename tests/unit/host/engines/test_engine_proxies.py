"""Proxies as build arguments, and credentials out of texts."""

import pytest

from flagbench.engines.proxies import proxy_args
from flagbench.redaction import redact


def test_a_proxy_is_given_in_both_spellings():
    assert proxy_args({"HTTP_PROXY": "http://p:1"}, {}) == {"HTTP_PROXY": "http://p:1", "http_proxy": "http://p:1"}
    assert proxy_args({"https_proxy": "http://p:1"}, {}) == {"HTTPS_PROXY": "http://p:1", "https_proxy": "http://p:1"}
    assert proxy_args({"NO_PROXY": "localhost,.example"}, {})["no_proxy"] == "localhost,.example"


def test_the_environment_beats_dockers_configuration():
    given = proxy_args({"HTTP_PROXY": "http://env:1"}, {"HTTP_PROXY": "http://file:1", "FTP_PROXY": "http://file:2"})
    assert given["http_proxy"] == "http://env:1"
    assert given["FTP_PROXY"] == "http://file:2"


def test_an_empty_proxy_is_none():
    assert proxy_args({"HTTP_PROXY": "", "PATH": "/bin"}, {}) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@index.example/simple", "https://***@index.example/simple"),
        ("https://token@index.example", "https://***@index.example"),
        ("http://me:p@ss@proxy:3128, then", "http://***@proxy:3128, then"),
        ("image a/b@sha256:0 of https://x.example/@scope", "image a/b@sha256:0 of https://x.example/@scope"),
        ("mail me@example", "mail me@example"),
    ],
)
def test_credentials_are_taken_out(text, shown):
    assert redact(text) == shown
