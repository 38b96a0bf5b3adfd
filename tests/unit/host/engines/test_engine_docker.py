"""The Docker adapter against an engine and a docker command that answer what the test says."""

import io
from contextlib import closing

import pytest

from flagbench.engines import open_engine
from flagbench.engines.base import BuildFailed, BuildRequest, EngineError, ImageInfo, Resources
from flagbench.engines.docker import image_info

from .conftest import recorded

HOSTILE = "a\"b'c\\ $(touch x) `y` ${HOME} \n#&=?%00é --privileged"
IMAGE = {
    "Id": "sha256:abc",
    "Size": 12,
    "Os": "linux",
    "Architecture": "amd64",
    "RepoDigests": ["r.example/a@sha256:def"],
    "RootFS": {"Layers": ["sha256:1", "sha256:2"]},
    "Config": {"Labels": {"l": "v"}, "Env": ["PATH=/bin", "EQ=a=b", "NONE="]},
}


@pytest.fixture
def engine(fake_engine, fake_command):
    with closing(open_engine()) as opened:
        yield opened


def test_a_build_sends_its_context_and_shows_progress(engine, fake_engine, fake_command):
    fake_command.prints(recorded("success"), image="sha256:abc")
    fake_engine.answers["/images/a:1/json"] = (200, {**IMAGE, "Id": "sha256:engine"})
    shown = io.StringIO()
    built = engine.build(BuildRequest([b"one", b"", b"two"], tags=("a:1", "a:2")), show=shown)
    assert built.image_id == "sha256:engine"
    assert any("RUN cat /greeting" in step.name for step in built.steps)
    assert fake_command.stdin == b"onetwo"
    assert shown.getvalue() == recorded("success")
    assert (fake_command.arguments[0], fake_command.arguments[-1]) == ("build", "-")
    assert fake_command.options("tag") == ["a:1", "a:2"]
    assert fake_command.options("progress") == ["plain"]
    assert engine.build(BuildRequest([b"x"])).image_id == "sha256:abc", "without a tag, the client's own"


def test_values_travel_as_single_arguments(engine, fake_command):
    values = {"tags": (HOSTILE,), "build_args": {"A": HOSTILE}, "labels": {"l": HOSTILE}, "platform": HOSTILE}
    engine.build(BuildRequest([b"x"], **values, no_cache=True))
    assert fake_command.options("build-arg") == [f"A={HOSTILE}"]
    assert fake_command.options("label") == [f"l={HOSTILE}"]
    assert fake_command.options("tag") == fake_command.options("platform") == [HOSTILE]
    assert "--no-cache" in fake_command.arguments


def test_buildkit_of_the_engine_builds(engine, fake_command, monkeypatch):
    monkeypatch.setenv("BUILDX_BUILDER", "elsewhere")
    engine.build(BuildRequest([b"x"]))
    assert fake_command.environment["DOCKER_BUILDKIT"] == "1"
    assert fake_command.environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    assert "BUILDX_BUILDER" not in fake_command.environment


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_no_proxy_is_on_the_command_line(engine, fake_command, monkeypatch, name):
    monkeypatch.setenv(name, "http://me:planted@proxy.example:1")
    monkeypatch.setenv("ALL_PROXY", "")
    engine.build(BuildRequest([b"x"]))
    assert fake_command.options("build-arg") == ["HTTPS_PROXY", "https_proxy"]
    engine.build(BuildRequest([b"x"], build_args={"https_proxy": "http://other.example"}))
    assert fake_command.environment["HTTPS_PROXY"] == "http://me:planted@proxy.example:1"
    assert fake_command.options("build-arg") == ["https_proxy=http://other.example", "HTTPS_PROXY"]
    assert "planted" not in " ".join(fake_command.arguments)


def test_secrets_are_neither_shown_nor_reported(engine, fake_command):
    fake_command.prints(
        "#1 [1/1] RUN planted\n#1 0.1 planted at https://me:other@index.example\n"
        "#1 ERROR: planted\n------\n > [1/1] RUN planted:\n------\nplanted\n",
        status=1,
        image="sha256:abc",
    )
    shown = io.StringIO()
    with pytest.raises(BuildFailed) as caught:
        engine.build(BuildRequest([b"x"], secrets=("planted",)), show=shown)
    failed = caught.value
    for text in (shown.getvalue(), repr((failed.message, failed.remedy, failed.step, failed.lines))):
        assert "planted" not in text
        assert "other" not in text
        assert "***" in text


@pytest.mark.parametrize(("secrets", "progress"), [((), "tty"), (("planted",), "plain")])
def test_progress_that_would_cut_a_secret_is_not_drawn(engine, fake_command, monkeypatch, secrets, progress):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    engine.build(BuildRequest([b"x"], secrets=secrets), show=terminal)
    assert fake_command.options("progress") == [progress]


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
    with pytest.raises(EngineError) as caught:
        engine.build(BuildRequest([b"x"]))
    assert said in caught.value.message


def test_a_client_that_ends_without_an_image_has_failed(engine, fake_command):
    fake_command.prints("#1 DONE 0.0s\n")
    with pytest.raises(BuildFailed):
        engine.build(BuildRequest([b"x"]))


def test_without_a_client_an_image_is_still_described(fake_engine, on_path):
    on_path()
    fake_engine.answers["/images/a:1/json"] = (200, IMAGE)
    with closing(open_engine()) as opened:
        assert opened.inspect("a:1") is not None
        with pytest.raises(EngineError):
            opened.build(BuildRequest([b"x"]))


def test_an_image_is_described(engine, fake_engine):
    fake_engine.answers["/images/r.example:5000/a:1/json"] = (200, IMAGE)
    assert engine.inspect("r.example:5000/a:1") == ImageInfo(
        id="sha256:abc",
        labels={"l": "v"},
        size=12,
        layers=("sha256:1", "sha256:2"),
        env={"PATH": "/bin", "EQ": "a=b", "NONE": ""},
        repo_digests=("r.example/a@sha256:def",),
        platform="linux/amd64",
        config={"Cmd": None, "Entrypoint": None, "User": None, "WorkingDir": None},
    )
    assert engine.inspect("other") is None


def test_an_image_without_configuration_has_empty_parts():
    info = image_info({"Id": "sha256:abc", "Size": 0, "Config": {"Labels": None, "Env": None}, "RepoDigests": None})
    assert (info.labels, info.env, info.layers, info.repo_digests) == ({}, {}, (), ())


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (200, {}, "cannot be read"),
        (200, {**IMAGE, "Size": "many"}, "cannot be read"),
        (200, {**IMAGE, "Config": ["x"]}, "cannot be read"),
        (500, {"message": "the layer store is broken"}, "the layer store is broken"),
    ],
)
def test_an_engine_that_cannot_describe_an_image(engine, fake_engine, status, answer, said):
    fake_engine.answers["/images/a:1/json"] = (status, answer)
    with pytest.raises(EngineError) as caught:
        engine.inspect("a:1")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"Id": "sha256:other", "RepoDigests": ["r.example/a@sha256:other"]}, True),
        ({"RepoTags": ["b:2"], "Size": 99, "Created": "2026-01-01T00:00:00Z"}, True),
        ({"RootFS": {"Layers": ["sha256:1"]}}, False),
        ({"Config": {**IMAGE["Config"], "Env": ["PATH=/"]}}, False),
        ({"Config": {**IMAGE["Config"], "Labels": {}}}, False),
        ({"Config": {**IMAGE["Config"], "Cmd": ["sh"]}}, False),
        ({"Architecture": "arm64"}, False),
    ],
)
def test_an_images_content_has_one_digest_with_every_image_store(change, same):
    assert (image_info({**IMAGE, **change}).content_digest == image_info(IMAGE).content_digest) is same


def test_a_pull_is_the_clients(engine, fake_engine, fake_command):
    fake_engine.answers["/images/r.example/a:1/json"] = (200, IMAGE)
    fake_command.prints("0123: Pull complete\n")
    shown = io.StringIO()
    assert engine.pull("r.example/a:1", platform="linux/amd64", show=shown).id == "sha256:abc"
    assert fake_command.arguments == ["pull", "--platform=linux/amd64", "r.example/a:1"]
    assert shown.getvalue() == "0123: Pull complete\n"


def test_a_pull_that_is_refused(engine, fake_engine, fake_command):
    fake_engine.answers["/images/r.example/a:1/json"] = (200, IMAGE)
    fake_command.prints("Error response from daemon: unauthorized\n", status=1)
    with pytest.raises(BuildFailed) as caught:
        engine.pull("r.example/a:1")
    assert "cannot pull r.example/a:1: the registry does not let you pull" in caught.value.message


@pytest.mark.parametrize("name", ["sha256:" + "0" * 64, "flagbench/stack:cpu", "localhost/flagbench/base:0123"])
def test_no_registry_is_asked_for_an_id_or_for_our_own_images(engine, fake_command, name):
    """On Docker Hub, which a name without a host means, the name may be anybody's."""
    with pytest.raises(BuildFailed) as caught:
        engine.pull(name)
    assert "docker load" in caught.value.remedy
    assert fake_command.arguments is None


def test_an_engine_tells_its_processors_and_memory(engine, fake_engine):
    fake_engine.answers["/info"] = (200, {"NCPU": 64, "MemTotal": 2**38})
    assert engine.resources() == Resources(64, 2**38)


def test_a_tag_of_a_missing_image(engine, fake_engine):
    fake_engine.answers["/images/a:1/tag"] = (404, {"message": "No such image: a:1"})
    with pytest.raises(EngineError) as caught:
        engine.tag("a:1", "b:2")
    assert "a:1" in caught.value.message


def test_free_space_is_told_only_where_the_data_is_here(engine, fake_engine, tmp_path):
    fake_engine.answers["/info"] = (200, {"DockerRootDir": str(tmp_path)})
    assert engine.free_bytes() > 0
    fake_engine.answers["/info"] = (200, {"DockerRootDir": str(tmp_path / "elsewhere")})
    assert engine.free_bytes() is None
