"""Which engine is asked, and how it is told that none answers."""

import errno
import json
import socket
import ssl

import pytest

from flagbench.images import docker_api
from flagbench.images.docker import open_engine
from flagbench.images.docker_api import engine_errors, open_client
from flagbench.images.docker_errors import EngineError


@pytest.mark.parametrize(("named", "current"), [("", "elsewhere"), ("elsewhere", "default")])
def test_docker_s_context_is_followed(fake_engine, tmp_path, monkeypatch, named, current):
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", named)
    from docker.context import Context

    # First: docker-py keeps contexts beside its configuration.
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": current}))
    context = Context("elsewhere")
    context.set_endpoint("docker", f"unix://{fake_engine.path}")
    context.save()
    health = open_engine().health()
    assert "20.10.24" in health
    assert "the docker context elsewhere" in health


def test_a_ready_engine_is_described(fake_engine, fake_command, monkeypatch, tmp_path):
    health = open_engine().health()
    assert f"Docker Engine 20.10.24 (linux/amd64, API 1.41) at {fake_engine.path}" in health
    assert f"built with {fake_command.path}" in health
    monkeypatch.setenv("FLAGBENCH_DOCKER", str(tmp_path / "none"))
    assert "cannot build" in open_engine().health()


def refusal():
    """The message of the error that the engine cannot be used."""
    with pytest.raises(EngineError) as caught:
        open_client()
    return caught.value.message


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("unix://{}/none", "{}/none"),
        ("tcp://me:secret@127.0.0.1:1", "***@127.0.0.1:1"),
        ("gopher://node7", "gopher://node7"),
    ],
)
def test_an_address_where_no_engine_answers(fake_engine, tmp_path, monkeypatch, address, shown):
    monkeypatch.setenv("DOCKER_HOST", address.format(tmp_path))
    message = refusal()
    assert shown.format(tmp_path) in message
    assert "secret" not in message


def test_an_engine_that_accepts_and_never_answers(fake_engine, tmp_path, monkeypatch):
    monkeypatch.setattr(docker_api, "VERSION_SECONDS", 0.1)
    path = str(tmp_path / "silent")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        assert "timed out" in refusal()


@pytest.mark.parametrize(
    ("status", "answer", "cause"),
    [
        (200, {"Version": "19.03.15", "ApiVersion": "1.40"}, "Docker Engine 19.03.15"),
        (200, {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}, "is Podman"),
        (500, {"message": "the store is broken"}, "the store is broken"),
        (200, "hello", "no container engine answers"),
    ],
)
def test_what_cannot_be_used_as_an_engine(fake_engine, status, answer, cause):
    fake_engine.answers["/version"] = (status, answer)
    assert cause in refusal()


@pytest.mark.parametrize(
    ("system", "remedy"),
    [(PermissionError(errno.EACCES, "denied"), "usermod -aG"), (ssl.SSLCertVerificationError(1, "x"), "DOCKER_HOST")],
)
def test_the_systems_errors_are_told_apart(system, remedy):
    from docker.errors import DockerException

    with pytest.raises(EngineError) as caught, engine_errors("answer"):
        raise DockerException("wrapped") from system
    assert str(system) in caught.value.message
    assert remedy in caught.value.remedy
