"""Which engine is asked, and how it is told that none answers."""

import errno
import json
import socket
import ssl

import pytest

from flagbench.images.engines import connect, open_client, open_engine
from flagbench.images.engines.base import EngineError
from flagbench.images.engines.connect import engine_errors


@pytest.mark.parametrize(
    ("named", "current", "folder"),
    [("", "elsewhere", "."), ("elsewhere", "default", "."), ("", "elsewhere", "home/.docker")],
)
def test_dockers_context_is_followed(fake_engine, tmp_path, monkeypatch, named, current, folder):
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", named)
    from docker.context import Context

    # First: docker-py keeps contexts beside its configuration, and in the current folder where there is none.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "config.json").write_text(json.dumps({"currentContext": current}))
    context = Context("elsewhere")
    context.set_endpoint("docker", f"unix://{fake_engine.path}")
    context.save()
    health = open_engine().health()
    assert "20.10.24" in health
    assert "the docker context elsewhere" in health


def test_a_ready_engine_is_described(fake_engine, fake_command):
    health = open_engine().health()
    assert f"Docker Engine 20.10.24 (linux/amd64, API 1.41) at {fake_engine.path}" in health
    assert f"built with {fake_command.path}" in health
    client = open_client()
    assert client.api.timeout >= 600
    client.close()


def test_an_engine_that_cannot_build_says_why(fake_engine, on_path):
    on_path()
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
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
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
    monkeypatch.setattr(connect, "ANSWER_SECONDS", 0.1)
    path = str(tmp_path / "silent")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        assert "timed out" in refusal()


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (200, {"Version": "19.03.15", "ApiVersion": "1.40"}, "Docker Engine 19.03.15"),
        (200, {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}, "is Podman"),
        (500, {"message": "the store is broken"}, "the store is broken"),
        (200, {}, "no container engine answers"),
        (200, "hello", "no container engine answers"),
    ],
)
def test_what_cannot_be_used_as_an_engine(fake_engine, status, answer, said):
    fake_engine.answers["/version"] = (status, answer)
    assert said in refusal()


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
