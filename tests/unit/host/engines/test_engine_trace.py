"""BuildKit's progress, read from what a real engine sent and from messages made here."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.engines.base import StepDone, StepLog, StepProgress, StepStarted
from flagbench.engines.trace import TraceError, TraceReader, fields


def messages(lines):
    for line in lines:
        if line.strip() and (message := json.loads(line)).get("id") == "moby.buildkit.trace":
            yield base64.b64decode(message["aux"])


def events(lines):
    reader = TraceReader()
    return [event for message in messages(lines) for event in reader.read(message)]


def test_a_build_reads_as_steps_with_their_output(recorded):
    read = events(recorded("success"))
    run = next(e for e in read if isinstance(e, StepStarted) and "cat /greeting" in e.name)
    assert run.name.startswith("[stage-1 3/3] RUN --mount=type=bind")
    printed = "".join(e.text for e in read if isinstance(e, StepLog) and e.id == run.id)
    assert printed == "hällo\nwarned\nline 0\nline 1\nline 2\nline 3\nline 4\n"
    (done,) = [e for e in read if isinstance(e, StepDone) and e.id == run.id]
    assert (done.name, done.cached, done.error) == (run.name, False, None)
    assert 0.05 < done.seconds < 5
    assert any(isinstance(e, StepProgress) and e.what == "exporting layers" for e in read)


def test_every_step_that_is_started_is_done(recorded):
    for name in ("success", "cached", "failing_step", "pip_hash"):
        running = set()
        for event in events(recorded(name)):
            if isinstance(event, StepStarted):
                assert event.id not in running
                running.add(event.id)
            elif isinstance(event, StepDone):
                running.remove(event.id)
        assert not running, name


def test_a_second_build_is_cached(recorded):
    done = {e.name: e.cached for e in events(recorded("cached")) if isinstance(e, StepDone)}
    assert [name for name, cached in done.items() if cached and "] RUN" in name]
    assert not [name for name, cached in done.items() if not cached and "] RUN" in name]


def test_the_failing_step_says_why(recorded):
    (failed,) = [e for e in events(recorded("failing_step")) if isinstance(e, StepDone) and e.error]
    assert failed.error.endswith("exit code: 3")


def test_a_step_begun_again_is_told_again(encode):
    reader = TraceReader()

    def vertex(started, completed):
        pairs = [(1, "sha256:a"), (3, "load"), (5, [(1, started)])]
        return encode([(1, pairs + ([(6, [(1, completed), (2, 500_000_000)])] if completed else []))])

    told = [*reader.read(vertex(10, None)), *reader.read(vertex(10, 12)), *reader.read(vertex(10, 12))]
    assert told == [StepStarted("sha256:a", "load"), StepDone("sha256:a", "load", 2.5, False)]
    assert list(reader.read(vertex(20, 21))) == [
        StepStarted("sha256:a", "load"),
        StepDone("sha256:a", "load", 1.5, False),
    ]


def test_characters_cut_between_messages_are_put_together(encode):
    reader = TraceReader()
    halves = [encode([(3, [(1, "sha256:a"), (3, 1), (4, half)])]) for half in ("h\u00e4".encode()[:2], b"\xa4llo")]
    assert [e.text for half in halves for e in reader.read(half)] == ["h", "\u00e4llo"]


def test_download_progress_is_told_once_per_change(encode):
    reader = TraceReader()
    message = encode([(2, [(1, "layer"), (2, "sha256:a"), (4, 5), (5, 2**40)])])
    assert list(reader.read(message)) == [StepProgress("sha256:a", "layer", 5, 2**40)]
    assert list(reader.read(message)) == []


def test_unknown_fields_are_skipped(encode):
    vertex = [(1, "sha256:a"), (3, "step"), (5, [(1, 1)]), (8, [(1, "group")]), (99, 7)]
    fixed = b"\x7d" + b"\0" * 4 + b"\x79" + b"\0" * 8  # field 15, of 32 and of 64 bits
    assert list(TraceReader().read(encode([(1, vertex), (4, "warning")]) + fixed)) == [
        StepStarted("sha256:a", "step")
    ]


@pytest.mark.parametrize(
    "broken",
    [b"\x0a", b"\x0a\x05abc", b"\xff" * 11, b"\x0b", b"\x00", b"\x08\x01", b"\x0a\x02\x2a\x05", b"\x0a\x02\x08\x01"],
)
def test_what_is_no_message_is_an_error(broken):
    with pytest.raises(TraceError):
        list(TraceReader().read(broken))


@given(st.binary(max_size=200))
def test_garbage_is_read_to_an_end_or_an_error(garbage):
    try:
        for number, _ in fields(garbage):
            assert number > 0
        list(TraceReader().read(garbage))
    except TraceError:
        pass


@given(st.data())
def test_a_message_cut_anywhere_is_read_in_part_or_an_error(recorded, data):
    message = data.draw(st.sampled_from(list(messages(recorded("success")))))
    try:
        list(TraceReader().read(message[: data.draw(st.integers(0, len(message) - 1))]))
    except TraceError:
        pass
