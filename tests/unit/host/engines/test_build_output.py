"""What the docker command printed of a build: its steps, or the failed one with its last lines."""

import pytest

from flagbench.engines.base import Step
from flagbench.errors import ExitCode

from .conftest import output_of, recorded

RUN = "[2/2] RUN for i in 1 2 3; do echo line $i; done; echo cannot go on >&2; exit 3"
PRINTED = ["cannot go on", "line 1", "line 2", "line 3"]


def test_the_steps_of_a_build():
    (run,) = [step for step in output_of(recorded("success")).steps if "RUN" in step.name]
    assert run.name == "[3/3] RUN cat /greeting && echo recorded again > /made"
    assert run.seconds > 0
    assert not run.cached
    assert Step(run.name, 0.0, cached=True) in output_of(recorded("cached")).steps
    loaded = Step("[internal] load build definition from Dockerfile", 0.0, cached=False)
    assert loaded in output_of(recorded("buildx")).steps


@pytest.mark.parametrize(
    ("name", "step", "lines", "code"),
    [
        ("failing_step", RUN, PRINTED, 3),
        ("terminal", RUN, PRINTED, 3),  # its progress was drawn
        ("buildx", "[2/2] RUN echo hello; exit 3", ["hello"], 3),
        (
            "parallel",
            "[b 2/2] RUN sleep 1; echo it failed; exit 4",
            ["it failed"],
            4,
        ),  # another was cancelled
    ],
)
def test_a_failure_names_the_step_and_its_last_lines(name, step, lines, code):
    failed = output_of(recorded(name)).failure()
    assert (failed.code, failed.step) == (ExitCode.BUILD_FAILED, step)
    # stdout and stderr are two pipes: what is written to both at once comes in either order.
    assert sorted(failed.lines) == lines
    assert f"exit code {code}" in failed.message


def failing(*log):
    """Why a build failed whose step printed these lines."""
    lines = ["#1 [1/1] RUN x", *(f"#1 0.1 {line}" for line in log), "#1 ERROR: exit code: 1"]
    frame = ["------", " > [1/1] RUN x:", lines[-2], "------", "exit code: 1"]
    return output_of("\n".join([*lines, *frame])).failure()


def test_twenty_lines_are_shown_and_more_are_searched():
    failed = failing("SSLError(CERTIFICATE_VERIFY_FAILED)", *map(str, range(50)))
    assert failed.lines == tuple(map(str, range(30, 50)))
    assert "--ca-bundle" in failed.remedy


def test_a_progress_bar_counts_as_what_it_last_was():
    assert failing("10 %\r50 %\r100 %", "failed\r").lines == ("100 %", "failed")


def test_output_without_a_line_break_hides_no_end():
    output = output_of("#1 [1/1] RUN x\n#1 0.1 no line break#1 DONE 0.4s\n")
    assert output.steps == [Step("[1/1] RUN x", 0.4, cached=False)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no reason"),
        ("Error response from daemon: it broke\n", "it broke"),
        (
            'invalid argument "A B" for "-t": invalid reference format\nSee \'docker build --help\'.\n',
            "reference format",
        ),
    ],
)
def test_a_failure_outside_of_any_step(text, cause):
    failed = output_of(text).failure()
    assert failed.step is None
    assert cause in failed.message
