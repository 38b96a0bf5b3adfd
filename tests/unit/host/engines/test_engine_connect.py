"""Which engine is asked, and in which words it is told that none answers."""

import errno
import json
import ssl
from contextlib import closing

import pytest

from flagbench.engines import open_client, open_engine, peek
from flagbench.engines.base import EngineError
from flagbench.engines.connect import Connection, engine_errors, local_socket, unreachable
from flagbench.errors import ExitCode


@pytest.mark.parametrize(
    ("environment", "socket"),
    [
        ({}, "/var/run/docker.sock"),
        ({"DOCKER_HOST": "unix:///run/user/1000/docker.sock"}, "/run/user/1000/docker.sock"),
        ({"DOCKER_HOST": "/run/docker.sock"}, "/run/docker.sock"),
        ({"DOCKER_HOST": "tcp://node7:2376"}, None),
        ({"DOCKER_HOST": "ssh://me@node7"}, None),
        ({"DOCKER_CONTEXT": "default"}, "/var/run/docker.sock"),
        ({"DOCKER_CONTEXT": "remote"}, None),
        ({"DOCKER_HOST": "unix:///a", "DOCKER_CONTEXT": "remote"}, "/a"),
    ],
)
def test_dockers_settings_name_the_engine(tmp_path, environment, socket):
    assert local_socket({"DOCKER_CONFIG": str(tmp_path), **environment}) == socket


@pytest.mark.parametrize(
    ("settings", "socket"),
    [
        ('{"currentContext": "remote"}', None),
        ('{"currentContext": "default"}', "/var/run/docker.sock"),
        ('{"auths": {}}', "/var/run/docker.sock"),
        ("[]", "/var/run/docker.sock"),
        ("not json", "/var/run/docker.sock"),
        ("[" * 100_000, "/var/run/docker.sock"),
    ],
)
def test_a_context_in_use_is_left_to_docker_py(tmp_path, settings, socket):
    (tmp_path / "config.json").write_text(settings)
    assert local_socket({"DOCKER_CONFIG": str(tmp_path)}) == socket


def test_the_context_of_dockers_configuration_is_followed(fake_engine, tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST")
    from docker.context import Context

    # First: docker-py keeps contexts beside its configuration, and in the current folder where there is none.
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "elsewhere"}))
    context = Context("elsewhere")
    context.set_endpoint("docker", f"unix://{fake_engine.path}")
    context.save()
    assert "20.10.24" in open_engine().health()


def test_a_ready_engine_is_described(fake_engine):
    assert open_engine().health() == f"Docker Engine 20.10.24 (linux/amd64, API 1.41) at {fake_engine.path}"
    client = open_client()
    assert client.api.timeout >= 600
    client.close()


def test_looking_at_an_image_imports_no_client_library(fake_engine):
    import subprocess
    import sys

    fake_engine.answers["/images/a:1/json"] = (200, {"Id": "sha256:abc", "Size": 1})
    code = (
        "import sys; from flagbench.engines import open_engine; assert open_engine().inspect('a:1').size == 1; "
        "print(sorted({'docker', 'requests', 'urllib3', 'ssl', 'http.client'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def raises(environment, **options):
    with closing(Connection(environment, **options)) as connection, pytest.raises(EngineError) as caught:
        connection.version()
    assert caught.value.code is ExitCode.ENGINE
    assert caught.value.remedy
    return caught.value.message


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


@pytest.mark.parametrize(
    ("api", "version"), [("1.40", "19.03.15"), ("1.39", "18.09.9"), ("1.24", "1.12.6"), ("0.9", "0.7")]
)
def test_an_engine_that_cannot_read_our_dockerfiles(fake_engine, api, version):
    fake_engine.answers["/version"] = (200, {"Version": version, "ApiVersion": api})
    message = raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})
    assert f"is too old: {version} speaks API {api}, images need 1.41" in message


def test_the_oldest_engine_that_can(fake_engine):
    assert fake_engine.answers["/version"][1]["ApiVersion"] == "1.41"
    assert open_engine().health()


@pytest.mark.parametrize("answer", [{}, {"ApiVersion": "new"}, {"ApiVersion": 2}, [], "hello"])
def test_something_else_at_the_socket(fake_engine, answer):
    fake_engine.answers["/version"] = (200, answer)
    assert "is no Docker Engine" in raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})


def test_an_engine_that_cannot_say_its_version(fake_engine):
    fake_engine.answers["/version"] = (500, {"message": "the store is broken"})
    assert "the store is broken" in raises({"DOCKER_HOST": f"unix://{fake_engine.path}"})


def test_an_answer_without_end_is_cut(fake_engine, monkeypatch):
    monkeypatch.setattr(peek, "LARGEST", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        peek.get("/version", fake_engine.path, 5)


def test_a_name_stays_one_path(fake_engine):
    peek.get("/images/a b?c=d\r\nX: y/json", fake_engine.path, 5)
    method, path, query, headers = fake_engine.requests[-1]
    assert (method, path, query) == ("GET", "/images/a b?c=d\r\nX: y/json", {})
    assert set(headers) == {"Host"}


def test_an_address_with_a_password_is_not_repeated(fake_engine):
    message = raises({"DOCKER_HOST": "tcp://me:secret@127.0.0.1:1"})
    assert "secret" not in message


def test_a_certificate_that_is_not_trusted_is_no_lack_of_permission():
    from docker.errors import DockerException

    with (
        pytest.raises(EngineError, match="cannot be used: certificate verify failed"),
        engine_errors("answer", "tcp://n:1"),
    ):
        raise DockerException("certificate verify failed") from ssl.SSLCertVerificationError(1, "verify failed")


def test_our_own_errors_pass_unchanged(fake_engine):
    with pytest.raises(KeyError), engine_errors("answer", "here"):
        raise KeyError("a bug")
