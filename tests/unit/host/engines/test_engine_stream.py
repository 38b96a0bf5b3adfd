"""The answer to a build, from recordings: the image at its end, or the failure with its step and lines."""

import base64
import json

import pytest

from flagbench.engines.base import BuildFailed, Built, EngineError, StepDone, StepStarted
from flagbench.engines.stream import read_build
from flagbench.errors import ExitCode


def line(**message):
    return json.dumps(message).encode() + b"\r\n"


def trace(encode, *vertexes):
    return line(id="moby.buildkit.trace", aux=base64.b64encode(encode([(1, v) for v in vertexes])).decode())


def failure_of(lines):
    with pytest.raises(BuildFailed) as caught:
        list(read_build(lines))
    return caught.value


def test_a_build_ends_with_its_image(recorded):
    *steps, built = read_build(recorded("success"))
    assert isinstance(built, Built)
    assert built.image_id.startswith("sha256:")
    assert len(built.image_id) == 71
    assert {StepStarted, StepDone} < {type(step) for step in steps}


def test_a_failure_names_the_step_and_its_last_lines(recorded):
    failed = failure_of(recorded("failing_step"))
    assert failed.code is ExitCode.BUILD_FAILED
    # stdout and stderr are two pipes: what is written to both at once comes in either order.
    assert sorted(failed.lines) == ["cannot go on", "line 1", "line 2", "line 3"]
    assert failed.step.startswith("[2/2] RUN for i in 1 2 3")
    assert "a command ended with exit code 3" in failed.message


def test_no_more_than_twenty_lines_are_shown(encode):
    log = [(1, "sha256:a"), (3, 1), (4, "".join(f"{n}\n" for n in range(50)))]
    ended = [(1, "sha256:a"), (3, "[1/1] RUN x"), (5, [(1, 1)]), (6, [(1, 2)]), (7, "exit code: 1")]
    message = base64.b64encode(encode([(3, log), (1, ended)])).decode()
    failed = failure_of([line(id="moby.buildkit.trace", aux=message), line(errorDetail={"message": "exit code: 1"})])
    assert failed.lines == tuple(str(n) for n in range(30, 50))


def test_a_progress_bar_counts_as_what_it_last_was(encode):
    log = [(1, "sha256:a"), (3, 1), (4, "10 %\r50 %\r100 %\nfailed\r\n")]
    ended = [(1, "sha256:a"), (3, "[1/1] RUN x"), (5, [(1, 1)]), (6, [(1, 2)]), (7, "exit code: 1")]
    message = base64.b64encode(encode([(3, log), (1, ended)])).decode()
    failed = failure_of([line(id="moby.buildkit.trace", aux=message), line(errorDetail={"message": "exit code: 1"})])
    assert failed.lines == ("100 %", "failed")


@pytest.mark.parametrize(
    "message",
    [{"errorDetail": {"message": "it broke"}}, {"error": "it broke"}, {"errorDetail": {}, "error": "it broke"}],
)
def test_old_and_new_engines_say_it_differently(message):
    assert failure_of([line(**message)]).message == "cannot build: it broke"


def test_a_step_cancelled_because_another_failed_is_not_the_cause(encode):
    cancelled = [(1, "sha256:a"), (3, "[a 1/1] RUN long"), (5, [(1, 1)]), (6, [(1, 2)]), (7, "context canceled")]
    failed = [(1, "sha256:b"), (3, "[b 1/1] RUN bad"), (5, [(1, 1)]), (6, [(1, 2)]), (7, "exit code: 4")]
    for order in ((cancelled, failed), (failed, cancelled)):
        stream = [trace(encode, *order), line(errorDetail={"message": "exit code: 4"})]
        assert failure_of(stream).step == "[b 1/1] RUN bad"


def test_credentials_are_not_repeated(encode):
    url = "https://me:secret@index.example/simple"
    failed = [
        (1, "sha256:a"),
        (3, f"[1/1] RUN pip --index-url {url}"),
        (5, [(1, 1)]),
        (6, [(1, 2)]),
        (7, f"at {url}"),
    ]
    log = [(1, "sha256:a"), (3, 1), (4, f"Looking in indexes: {url}\n")]
    message = base64.b64encode(encode([(1, failed), (3, log)])).decode()
    told = failure_of([line(id="moby.buildkit.trace", aux=message), line(errorDetail={"message": f"no {url}"})])
    assert "secret" not in repr((told.message, told.remedy, told.step, told.lines))
    assert "https://***@index.example/simple" in told.lines[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n",
        b"[1]\n",
        b'{"id":"moby.buildkit.trace","aux":"!"}\n',
        b'{"id":"moby.buildkit.trace","aux":"Cg=="}\n',
        b'{"id":"moby.buildkit.trace","aux":{"a":1}}\n',
        b'{"id":"moby.buildkit.trace"}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_no_engine_sends_is_an_error(garbage):
    with pytest.raises(EngineError, match="cannot be read"):
        list(read_build([garbage]))


def test_an_answer_that_ends_early_is_an_error(recorded):
    with pytest.raises(EngineError, match="ended before the build did"):
        list(read_build(recorded("success")[:10]))
    with pytest.raises(EngineError, match="ended before the build did"):
        list(read_build([]))


def test_an_image_id_without_a_name_counts_too():
    assert list(read_build([line(stream="Step 1/1"), line(aux={"ID": "sha256:abc"})])) == [Built("sha256:abc")]
