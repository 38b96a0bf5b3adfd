"""Which engine is asked, and in which words it is told that none answers."""

import errno
import json
import ssl

import pytest

from flagbench.engines import open_client, open_engine
from flagbench.engines.base import EngineError
from flagbench.engines.connect import engine_errors, unreachable
from flagbench.errors import ExitCode


def test_the_context_of_dockers_configuration_is_followed(fake_engine, tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST")
    from docker.context import Context

    # First: docker-py keeps contexts beside its configuration, and in the current folder where there is none.
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "elsewhere"}))
    context = Context("elsewhere")
    context.set_endpoint("docker", f"unix://{fake_engine.path}")
    context.save()
    health = open_engine().health()
    assert "20.10.24" in health
    assert "the docker context elsewhere" in health


def test_a_ready_engine_is_described(fake_engine, fake_command):
    health = open_engine().health()
    assert f"Docker Engine 20.10.24 (linux/amd64, API 1.41) at {fake_engine.path}" in health
    assert f"built with {fake_command.path} 20.10.24" in health
    client = open_client()
    assert client.api.timeout >= 600
    client.close()


def raises(environment, **options):
    with pytest.raises(EngineError) as caught:
        open_client(environment, **options)
    assert caught.value.code is ExitCode.ENGINE
    assert caught.value.remedy
    return caught.value.message


def test_an_engine_that_cannot_build_says_why(fake_engine, on_path):
    on_path()
    assert "cannot build" in open_engine().health()


def test_no_engine(tmp_path):
    missing = tmp_path / "docker.sock"
    assert raises({"DOCKER_HOST": f"unix://{missing}"}) == f"no container engine answers at {missing}"
    missing.write_text("")
    assert raises({"DOCKER_HOST": f"unix://{missing}"}) == f"no container engine answers at {missing}"


def test_an_engine_of_another_machine_that_is_not_there(fake_engine, unused_port):
    assert raises({"DOCKER_HOST": f"tcp://127.0.0.1:{unused_port}"}) == (
        f"no container engine answers at tcp://127.0.0.1:{unused_port}"
    )


def test_a_malformed_address():
    assert "gopher://node7 cannot be used: Invalid bind address" in raises({"DOCKER_HOST": "gopher://node7"})


def test_a_socket_that_may_not_be_used_is_another_matter():
    refused = unreachable(PermissionError(errno.EACCES, "Permission denied"), "/var/run/docker.sock")
    assert refused.message == "this user may not use the container engine at /var/run/docker.sock"
    assert "usermod -aG docker" in refused.remedy


def test_an_engine_that_accepts_and_never_answers(fake_engine):
    fake_engine.silent = True
    environment = {"DOCKER_HOST": f"unix://{fake_engine.path}"}
    assert raises(environment, answer_seconds=0.1) == f"the container engine at {fake_engine.path} does not answer"


@pytest.mark.parametrize(("api", "version"), [("1.40", "19.03.15"), ("1.39", "18.09.9"), ("1.24", "1.12.6")])
def test_an_engine_that_cannot_read_our_dockerfiles(fake_engine, api, version):
    fake_engine.answers["/version"] = (200, {"Version": version, "ApiVersion": api})
    message = raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})
    assert f"is too old: {version} has API {api}, images need 1.41" in message


def test_the_oldest_engine_that_can(fake_engine):
    assert fake_engine.answers["/version"][1]["ApiVersion"] == "1.41"
    assert open_engine().health()


@pytest.mark.parametrize("answer", [{}, {"ApiVersion": "new"}, {"ApiVersion": 2}, [], "hello"])
def test_something_else_at_the_socket(fake_engine, answer):
    fake_engine.keeps_alive = False
    fake_engine.answers["/version"] = (200, answer)
    assert "cannot be used" in raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})


def test_podman_is_named_and_refused(fake_engine):
    fake_engine.answers["/version"] = (200, {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]})
    assert "is Podman" in raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})


def test_an_engine_that_cannot_say_its_version(fake_engine):
    fake_engine.answers["/version"] = (500, {"message": "the store is broken"})
    assert "the store is broken" in raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})


def test_an_address_with_a_password_is_not_repeated(fake_engine):
    message = raises({"DOCKER_HOST": "tcp://me:secret@127.0.0.1:1"})
    assert "secret" not in message


def test_a_certificate_that_is_not_trusted_is_no_lack_of_permission():
    from docker.errors import DockerException

    with pytest.raises(EngineError) as caught, engine_errors("answer", "tcp://n:1"):
        raise DockerException("certificate verify failed") from ssl.SSLCertVerificationError(1, "verify failed")
    assert "certificate verify failed" in caught.value.message


def test_our_own_errors_pass_unchanged(fake_engine):
    with pytest.raises(KeyError), engine_errors("answer", "here"):
        raise KeyError("a bug")
