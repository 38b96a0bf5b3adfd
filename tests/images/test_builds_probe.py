"""Whether images can be built here is asked once, and told in a line."""

import builds
from builds import once, probe


def test_an_engine_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "unix://%s" % (tmp_path / "docker.sock"))
    assert "no container engine answers" in probe()


def test_a_base_that_cannot_be_pulled(docker_engine):
    reason = probe("registry.invalid/flagbench/base:1")
    assert reason
    assert "\n" not in reason


def test_packages_that_cannot_be_reached(docker_engine, monkeypatch):
    """The steps of a build go through a proxy that nobody listens on."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("FLAGBENCH_APT_SOURCE", raising=False)
    assert probe()


def test_it_is_found_once_for_all_workers(tmp_path):
    found = iter(["because", "again"])
    assert [once(tmp_path, "name", lambda: next(found)) for _ in range(3)] == ["because"] * 3
    assert once(tmp_path, "other", lambda: None) is None
    assert builds.once(tmp_path, "other", lambda: 1) is None
