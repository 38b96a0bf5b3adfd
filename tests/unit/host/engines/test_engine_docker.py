"""The Docker adapter against an engine that answers what the test says."""

import json

import pytest

from flagbench.engines import open_engine
from flagbench.engines.base import (
    BuildFailed,
    BuildRequest,
    Built,
    EngineError,
    Resources,
    StepDone,
    StepProgress,
    StepStarted,
)
from flagbench.engines.docker import build_params, image_info
from flagbench.images import is_ours

HOSTILE = "a\"b'c\\ $(touch x) `y` ${HOME} \n#&=?%00é"
IMAGE = {
    "Id": "sha256:abc",
    "Size": 12,
    "Created": "2026-01-01T00:00:00Z",
    "Os": "linux",
    "Architecture": "amd64",
    "RepoDigests": ["r.example/a@sha256:def"],
    "RootFS": {"Layers": ["sha256:1", "sha256:2"]},
    "Config": {"Labels": {"l": "v"}, "Env": ["PATH=/bin", "EQ=a=b", "NONE="]},
}


@pytest.fixture
def engine(fake_engine):
    opened = open_engine()
    yield opened
    opened.close()


def test_a_build_sends_its_context_and_tells_what_happens(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")
    events = list(engine.build(BuildRequest([b"one", b"", b"two"], tags=("a:1", "a:2"))))
    assert isinstance(events[-1], Built)
    assert fake_engine.body == b"onetwo"
    _, path, query, headers = fake_engine.requests[-1]
    assert path == "/build"
    assert query["version"] == ["2"]
    assert query["t"] == ["a:1", "a:2"]
    assert headers["Content-Type"] == "application/tar"


def test_values_travel_as_data(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")
    request = BuildRequest(
        [b"x"],
        tags=(HOSTILE,),
        build_args={HOSTILE: HOSTILE},
        labels={HOSTILE: HOSTILE},
        target=HOSTILE,
        platform=HOSTILE,
        network="none",
        no_cache=True,
    )
    list(engine.build(request))
    _, path, query, _ = fake_engine.requests[-1]
    assert path == "/build"
    assert json.loads(query["buildargs"][0]) == {HOSTILE: HOSTILE}
    assert json.loads(query["labels"][0]) == {HOSTILE: HOSTILE}
    assert (query["t"], query["target"], query["platform"]) == ([HOSTILE], [HOSTILE], [HOSTILE])
    assert (query["networkmode"], query["nocache"]) == (["none"], ["1"])


def test_what_is_not_asked_for_is_not_sent():
    assert set(build_params(BuildRequest([]), {})) == {"version", "t", "buildargs", "labels"}


def test_proxies_are_build_arguments_a_caller_may_replace(engine, fake_engine, recorded, monkeypatch, tmp_path):
    fake_engine.lines = recorded("success")
    monkeypatch.setenv("https_proxy", "http://proxy.example:1")
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": {"ftpProxy": "http://file.example:2"}}}))
    list(engine.build(BuildRequest([b"x"], build_args={"https_proxy": "http://other.example"})))
    args = json.loads(fake_engine.requests[-1][2]["buildargs"][0])
    assert args["HTTPS_PROXY"] == "http://proxy.example:1"
    assert args["https_proxy"] == "http://other.example"
    assert args["FTP_PROXY"] == "http://file.example:2"


def test_events_come_while_the_build_runs_and_closing_cancels_it(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")[:8]
    fake_engine.ending = "hang"
    events = engine.build(BuildRequest([b"x"]))
    assert isinstance(next(events), StepStarted)
    assert not fake_engine.client_gone.is_set()
    events.close()
    assert fake_engine.client_gone.wait(10)


def test_an_interrupt_cancels_too(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")[:8]
    fake_engine.ending = "hang"
    events = engine.build(BuildRequest([b"x"]))
    next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())
    assert fake_engine.client_gone.wait(10)


def test_a_failing_step_is_told(engine, fake_engine, recorded):
    fake_engine.lines = recorded("failing_step")
    with pytest.raises(BuildFailed) as caught:
        list(engine.build(BuildRequest([b"x"])))
    assert "cannot go on" in caught.value.lines


def test_a_connection_cut_in_the_middle(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")[:10]
    fake_engine.ending = "cut"
    with pytest.raises(EngineError, match="went away before it could build"):
        list(engine.build(BuildRequest([b"x"])))


def test_an_engine_that_ends_without_an_image(engine, fake_engine, recorded):
    fake_engine.lines = recorded("success")[:10]
    with pytest.raises(EngineError, match="ended before the build did"):
        list(engine.build(BuildRequest([b"x"])))


def test_a_line_that_is_no_json(engine, fake_engine, recorded):
    fake_engine.lines = [*recorded("success")[:3], b"<html>proxy error</html>\n"]
    with pytest.raises(EngineError, match=r"cannot be read.*proxy error"):
        list(engine.build(BuildRequest([b"x"])))


@pytest.mark.parametrize("status", [400, 500])
def test_a_refused_build(engine, fake_engine, status):
    fake_engine.answers["/build"] = (status, {"message": "invalid reference format"})
    with pytest.raises(BuildFailed, match="the name of an image is malformed"):
        list(engine.build(BuildRequest([b"x"], tags=("A B",))))


def test_a_context_that_cannot_be_read_is_not_the_engines_fault(engine):
    def context():
        yield b"x"
        raise OSError(5, "Input/output error", "wheels/torch.whl")

    with pytest.raises(BuildFailed, match=r"context cannot be read.*torch\.whl"):
        list(engine.build(BuildRequest(context())))


def test_an_image_is_described(engine, fake_engine):
    fake_engine.answers["/images/r.example:5000/a:1/json"] = (200, IMAGE)
    info = engine.inspect("r.example:5000/a:1")
    assert info.id == "sha256:abc"
    assert info.env == {"PATH": "/bin", "EQ": "a=b", "NONE": ""}
    assert info.labels == {"l": "v"}
    assert info.layers == ("sha256:1", "sha256:2")
    assert info.repo_digests == ("r.example/a@sha256:def",)
    assert info.platform == "linux/amd64"
    assert engine.inspect("other") is None


def test_an_image_without_configuration_has_empty_parts():
    info = image_info({"Id": "sha256:abc", "Size": 0, "Config": {"Labels": None, "Env": None}, "RepoDigests": None})
    assert (info.labels, info.env, info.layers, info.repo_digests) == ({}, {}, (), ())


@pytest.mark.parametrize("raw", [{}, {"Id": "x", "Size": "many"}, {"Id": "x", "Size": 1, "Config": []}])
def test_a_description_that_is_none(raw):
    raw = {**raw, "Config": raw.get("Config") or ["x"]}
    with pytest.raises(EngineError, match="cannot be read"):
        image_info(raw)


def test_an_engine_that_cannot_describe_an_image(engine, fake_engine):
    fake_engine.answers["/images/a:1/json"] = (500, {"message": "the layer store is broken"})
    with pytest.raises(EngineError, match=r"could not describe the image a:1: the layer store is broken"):
        engine.inspect("a:1")


def line(**message):
    return json.dumps(message).encode() + b"\r\n"


def test_a_pull_tells_of_its_progress(engine, fake_engine):
    fake_engine.answers["/images/r.example/a:1/json"] = (200, IMAGE)
    layer = {"status": "Downloading", "id": "0123", "progressDetail": {"current": 5, "total": 9}}
    fake_engine.lines = [line(status="Pulling from a", id="1"), line(**layer), line(status="Download complete")]
    told = []
    assert engine.pull("r.example/a:1", platform="linux/amd64", report=told.append).id == "sha256:abc"
    assert StepProgress("pull r.example/a:1", "0123: Downloading", 5, 9) in told
    assert isinstance(told[0], StepStarted)
    assert isinstance(told[-1], StepDone)
    _, _, query, _ = next(r for r in fake_engine.requests if r[1] == "/images/create")
    assert query == {"fromImage": ["r.example/a"], "tag": ["1"], "platform": ["linux/amd64"]}


def test_a_pull_is_given_dockers_credentials(engine, fake_engine, tmp_path):
    login = {"auths": {"r.example": {"auth": "bWU6c2VjcmV0"}}}
    (tmp_path / "config.json").write_text(json.dumps(login))
    fake_engine.answers["/images/r.example/a:1/json"] = (200, IMAGE)
    engine.pull("r.example/a:1")
    _, _, _, headers = next(r for r in fake_engine.requests if r[1] == "/images/create")
    assert "X-Registry-Auth" in headers


@pytest.mark.parametrize(
    ("status", "answer", "cause"),
    [
        (500, {"message": "unauthorized"}, "does not let you pull"),
        (404, {"message": "pull access denied for a, repository does not exist"}, "does not let you pull"),
        (500, {"message": "manifest unknown"}, "has no base"),
        (
            500,
            {"message": 'Get "https://r.example/v2/": dial tcp: lookup: no such host'},
            "cannot be reached",
        ),
    ],
)
def test_a_pull_that_is_refused(engine, fake_engine, status, answer, cause):
    fake_engine.answers["/images/create"] = (status, answer)
    with pytest.raises(BuildFailed, match=cause):
        engine.pull("r.example/a:1")


def test_a_pull_that_fails_under_way(engine, fake_engine):
    fake_engine.lines = [
        line(status="Pulling"),
        line(errorDetail={"message": "unexpected EOF"}, error="unexpected EOF"),
    ]
    with pytest.raises(BuildFailed, match="cannot be reached"):
        engine.pull("r.example/a:1")


def test_an_id_is_not_pulled(engine, fake_engine):
    with pytest.raises(BuildFailed, match="an id cannot be pulled"):
        engine.pull("sha256:" + "0" * 64)
    assert [r for r in fake_engine.requests if r[0] == "POST"] == []


@pytest.mark.parametrize(
    "name",
    [
        "flagbench/stack:cpu",
        "flagbench/distilbert:cpu@sha256:" + "0" * 64,
        "docker.io/flagbench/glm:a100",
        "localhost/flagbench/base:0123",
    ],
)
def test_no_registry_is_asked_for_our_own_images(engine, fake_engine, name):
    """On Docker Hub, which a name without a host means, the name may be anybody's."""
    with pytest.raises(BuildFailed) as caught:
        engine.pull(name)
    assert "flagbench build" in caught.value.remedy
    assert [r for r in fake_engine.requests if r[0] == "POST"] == []


@pytest.mark.parametrize("name", ["registry.example/flagbench/stack:cpu", "flagbench-mirror/cuda:11.8", "debian:12"])
def test_other_images_are_not_taken_for_ours(name):
    assert not is_ours(name)


def test_an_engine_tells_its_processors_and_memory(engine, fake_engine):
    fake_engine.answers["/info"] = (200, {"NCPU": 64, "MemTotal": 2**38})
    assert engine.resources() == Resources(64, 2**38)


def test_a_tag_of_a_missing_image(engine, fake_engine):
    fake_engine.answers["/images/a:1/tag"] = (404, {"message": "No such image: a:1"})
    with pytest.raises(EngineError, match="No such image"):
        engine.tag("a:1", "b:2")


def test_free_space_is_told_only_where_the_data_is_here(engine, fake_engine, tmp_path):
    fake_engine.answers["/info"] = (200, {"DockerRootDir": str(tmp_path)})
    assert engine.free_bytes() > 0
    fake_engine.answers["/info"] = (200, {"DockerRootDir": str(tmp_path / "elsewhere")})
    assert engine.free_bytes() is None
