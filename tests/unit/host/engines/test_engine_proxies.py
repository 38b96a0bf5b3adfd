"""Proxies for the steps of a build."""

from flagbench.engines.proxies import proxy_variables


def test_a_proxy_is_given_in_both_spellings():
    both = {"HTTP_PROXY": "http://p:1", "http_proxy": "http://p:1"}
    assert proxy_variables({"HTTP_PROXY": "http://p:1"}) == both
    assert proxy_variables({"http_proxy": "http://p:1"}) == both
    assert proxy_variables({"NO_PROXY": "localhost,.example"})["no_proxy"] == "localhost,.example"


def test_an_empty_proxy_counts_as_none():
    assert proxy_variables({"HTTP_PROXY": "", "PATH": "/bin"}) == {}
