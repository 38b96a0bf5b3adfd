"""What the docker command printed of a build: its steps, or the failed one with its last lines."""

import pytest

from flagbench.engines.base import Step
from flagbench.engines.build_output import BuildOutput
from flagbench.errors import ExitCode

# As buildx 0.1x prints it, which docker commands from 23.0 on build with.
BUILDX = """#0 building with "default" instance using docker driver

#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 86B done
#1 DONE 0.0s

#5 [2/2] RUN echo hello; exit 3
#5 0.140 hello
#5 ERROR: process "/bin/sh -c echo hello; exit 3" did not complete successfully: exit code: 3
------
 > [2/2] RUN echo hello; exit 3:
0.140 hello
------
Dockerfile:2
--------------------
   1 |     FROM debian:bookworm-slim
   2 | >>> RUN echo hello; exit 3
   3 |
--------------------
ERROR: failed to solve: process "/bin/sh -c echo hello; exit 3" did not complete successfully: exit code: 3

View build details: docker-desktop://dashboard/build/default/default/abc
"""


def output_of(text):
    output = BuildOutput()
    for line in text.split("\n"):
        output.read(line + "\n")
    return output


def test_the_steps_of_a_build(recorded):
    steps = output_of(recorded("success")).steps
    (run,) = [step for step in steps if "RUN" in step.name]
    assert run.name == "[3/3] RUN cat /greeting && echo recorded again > /made"
    assert run.seconds > 0
    assert not run.cached
    cached = output_of(recorded("cached")).steps
    assert Step(run.name, 0.0, cached=True) in cached


@pytest.mark.parametrize("name", ["failing_step", "terminal"])
def test_a_failure_names_the_step_and_its_last_lines(recorded, name):
    """Also where the progress was drawn on a terminal."""
    failed = output_of(recorded(name)).failure()
    assert failed.code is ExitCode.BUILD_FAILED
    assert failed.step == "[2/2] RUN for i in 1 2 3; do echo line $i; done; echo cannot go on >&2; exit 3"
    # stdout and stderr are two pipes: what is written to both at once comes in either order.
    assert sorted(failed.lines) == ["cannot go on", "line 1", "line 2", "line 3"]
    assert "exit code 3" in failed.message


def test_buildx_words_it_differently():
    output = output_of(BUILDX)
    assert Step("[internal] load build definition from Dockerfile", 0.0, cached=False) in output.steps
    failed = output.failure()
    assert (failed.step, failed.lines) == ("[2/2] RUN echo hello; exit 3", ("hello",))
    assert "exit code 3" in failed.message


def test_a_step_cancelled_because_another_failed_is_not_the_cause(recorded):
    failed = output_of(recorded("parallel")).failure()
    assert failed.step == "[b 2/2] RUN sleep 1; echo it failed; exit 4"
    assert failed.lines == ("it failed",)


def failing(log):
    """The output of a build whose step printed these lines."""
    lines = ["#1 [1/1] RUN x", *(f"#1 0.1 {line}" for line in log), "#1 ERROR: exit code: 1"]
    return output_of("\n".join([*lines, "------", " > [1/1] RUN x:", *lines[-2:-1], "------", "exit code: 1\n"]))


def test_no_more_than_twenty_lines_are_shown_and_more_are_searched():
    pip = ["SSLError(CERTIFICATE_VERIFY_FAILED)", *(str(n) for n in range(50))]
    failed = failing(pip).failure()
    assert failed.lines == tuple(str(n) for n in range(30, 50))
    assert "--ca-bundle" in failed.remedy


def test_a_progress_bar_counts_as_what_it_last_was():
    assert failing(["10 %\r50 %\r100 %", "failed\r"]).failure().lines == ("100 %", "failed")


def test_output_without_a_line_break_hides_no_end():
    output = output_of("#1 [1/1] RUN x\n#1 0.1 no line break#1 DONE 0.4s\n")
    assert output.steps == [Step("[1/1] RUN x", 0.4, cached=False)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no reason"),
        ("Error response from daemon: it broke\n", "it broke"),
        ('invalid argument "A B" for "-t": invalid reference format\nSee \'docker build --help\'.\n', "malformed"),
    ],
)
def test_a_failure_outside_of_any_step(text, cause):
    failed = output_of(text).failure()
    assert failed.step is None
    assert cause in failed.message
