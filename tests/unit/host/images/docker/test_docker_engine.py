"""The Docker adapter against an engine and a docker command that answer what the test says."""

import io
from contextlib import closing

import pytest

from flagbench.images.docker import BuildRequest, ImageInfo, open_engine
from flagbench.images.docker_errors import BuildFailed, EngineError

HOSTILE = "a\"b'c\\ $(touch x) `y` ${HOME} \n#&=?%00é --privileged"
IMAGE = {
    "Id": "sha256:abc",
    "Os": "linux",
    "Architecture": "amd64",
    "RepoDigests": ["r.example/a@sha256:def"],
    "RootFS": {"Layers": ["sha256:1", "sha256:2"]},
    "Config": {"Labels": {"l": "v"}},
}
ONE = {"context": [b"x"], "tags": ("a:1",)}


@pytest.fixture
def engine(fake_engine, fake_command):
    """An engine that has the image `a:1`."""
    fake_engine.answers["/images/a:1/json"] = (200, IMAGE)
    with closing(open_engine()) as opened:
        yield opened


def test_a_build_sends_its_context_and_shows_progress(engine, fake_command):
    fake_command.prints("#1 DONE 0.1s\n")
    shown = io.StringIO()
    assert engine.build(BuildRequest([b"one", b"", b"two"], tags=("a:1", "a:2")), show=shown).id == "sha256:abc"
    assert (fake_command.stdin, shown.getvalue()) == (b"onetwo", "#1 DONE 0.1s\n")
    assert (fake_command.arguments[0], fake_command.arguments[-1]) == ("build", "-")
    assert fake_command.options("tag") == ["a:1", "a:2"]


def test_values_travel_as_single_arguments(engine, fake_command):
    values = {"tags": ("a:1", HOSTILE), "build_args": {"A": HOSTILE}, "labels": {"l": HOSTILE}, "platform": HOSTILE}
    engine.build(BuildRequest([b"x"], **values, no_cache=True))
    assert fake_command.options("build-arg") == [f"A={HOSTILE}"]
    assert fake_command.options("label") == [f"l={HOSTILE}"]
    assert fake_command.options("tag")[1:] == fake_command.options("platform") == [HOSTILE]
    assert "--no-cache" in fake_command.arguments


def test_buildkit_of_the_engine_builds(engine, fake_command, monkeypatch):
    monkeypatch.setenv("BUILDX_BUILDER", "elsewhere")
    engine.build(BuildRequest(**ONE))
    assert fake_command.environment["DOCKER_BUILDKIT"] == "1"
    assert fake_command.environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    assert "BUILDX_BUILDER" not in fake_command.environment


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_no_proxy_is_on_the_command_line(engine, fake_command, monkeypatch, name):
    monkeypatch.setenv(name, "http://me:planted@proxy.example:1")
    monkeypatch.setenv("ALL_PROXY", "")
    engine.build(BuildRequest(**ONE))
    assert fake_command.options("build-arg") == ["HTTPS_PROXY", "https_proxy"]
    engine.build(BuildRequest(**ONE, build_args={"https_proxy": "http://other.example"}))
    assert fake_command.environment["HTTPS_PROXY"] == "http://me:planted@proxy.example:1"
    assert fake_command.options("build-arg") == ["https_proxy=http://other.example", "HTTPS_PROXY"]
    assert "planted" not in " ".join(fake_command.arguments)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_failure_shows_what_was_not_shown_without_secrets(engine, fake_command, quiet):
    fake_command.prints("#1 0.1 planted at https://me:other@index.example\nERROR: planted\n", status=1)
    shown = io.StringIO()
    with pytest.raises(BuildFailed) as caught:
        engine.build(BuildRequest(**ONE, secrets=("planted",)), show=None if quiet else shown)
    said = caught.value.message + caught.value.remedy + shown.getvalue()
    assert ("\n  | #1 0.1 *** at https://***@index.example" in caught.value.message) is quiet
    assert "planted" not in said
    assert "other" not in said


@pytest.mark.parametrize(
    "said",
    [
        "Cannot connect to the Docker daemon at unix:///x.",
        "rpc error: code = Unavailable desc",
        "error during connect: EOF",
    ],
)
def test_an_engine_that_goes_away_is_no_failed_build(engine, fake_command, said):
    fake_command.prints(f"#1 [1/1] RUN x\n{said}\n", status=1)
    with pytest.raises(EngineError, match=said):
        engine.build(BuildRequest(**ONE))


def test_an_image_that_another_builder_has_made(engine):
    with pytest.raises(EngineError) as caught:
        engine.build(BuildRequest([b"x"], tags=("b:1",)))
    assert "docker buildx use default" in caught.value.remedy


def test_an_image_is_described(engine, fake_engine):
    layers, digests = ("sha256:1", "sha256:2"), ("r.example/a@sha256:def",)
    assert engine.inspect("a:1") == ImageInfo("sha256:abc", {"l": "v"}, layers, digests, "linux/amd64")
    fake_engine.answers["/images/b/json"] = (200, {"Id": "sha256:abc", "Config": {"Labels": None}})
    assert engine.inspect("b") == ImageInfo("sha256:abc", {}, (), ())
    fake_engine.answers["/images/b/json"] = (500, {"message": "the layer store is broken"})
    with pytest.raises(EngineError, match="the layer store is broken"):
        engine.inspect("b")
    assert engine.inspect("other") is None


def test_a_pull_is_the_clients(engine, fake_command):
    fake_command.prints("0123: Pull complete\n")
    shown = io.StringIO()
    assert engine.pull("a:1", platform="linux/amd64", show=shown).id == "sha256:abc"
    assert fake_command.arguments == ["pull", "--platform=linux/amd64", "a:1"]
    assert shown.getvalue() == "0123: Pull complete\n"
    fake_command.prints("Error response from daemon: unauthorized\n", status=1)
    with pytest.raises(BuildFailed) as caught:
        engine.pull("a:1")
    assert "docker login" in caught.value.remedy


def test_a_push_tells_the_digest(engine, fake_command):
    digest = "sha256:" + "0" * 64
    fake_command.prints(f"0123: Pushed\n1: digest: {digest} size: 1\n")
    assert engine.push("r.example/a:1") == digest
    fake_command.prints("0123: Pushed\n")
    with pytest.raises(EngineError):
        engine.push("r.example/a:1")


@pytest.mark.parametrize(("name", "host"), [("r.example:1/a:1", "r.example:1"), ("me/a:1", "docker.io")])
def test_a_refused_push_names_the_registry_to_log_in_to(engine, fake_command, name, host):
    fake_command.prints("denied: requested access to the resource is denied\n", status=1)
    with pytest.raises(EngineError) as caught:
        engine.push(name)
    assert f"`docker login {host}`" in caught.value.remedy


@pytest.mark.parametrize("name", ["sha256:" + "0" * 64, "flagbench/stack:cpu", "localhost/flagbench/base:0123"])
def test_no_registry_is_asked_for_an_id_or_for_our_own_images(engine, fake_command, name):
    """On Docker Hub, which a name without a host means, the name may be anybody's."""
    with pytest.raises(BuildFailed):
        engine.pull(name)
    assert fake_command.arguments is None
