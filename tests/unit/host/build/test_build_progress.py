"""How a build looks: lines in a pipe, a live display on a terminal, failures alone where quiet was asked."""

from __future__ import annotations

import io

import pytest

from flagbench.build.progress import PlainView, QuietView, TerminalView, View, choose_view
from flagbench.build.result import TierResult
from flagbench.engines.base import BuildFailed, StepDone, StepLog, StepProgress, StepStarted

TAGS = ("flagbench/stack:mini", "flagbench/stack:mini-0.1.0")
BUILT = TierResult("stack/mini", "sha256:a", "sha256:b", TAGS, skipped=False, seconds=12.34)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def play(view: View) -> None:
    """One small build."""
    view.begin("stack/mini")
    view.event(StepStarted("0", "[internal] load build definition"))
    view.event(StepDone("0", "[internal] load build definition", 0.01, cached=False))
    view.event(StepStarted("1", "[1/2] FROM base"))
    view.event(StepProgress("1", "sha256:abc", 1_500_000, 3_000_000))
    view.event(StepDone("1", "[1/2] FROM base", 0.0, cached=True))
    view.event(StepStarted("2", "[2/2] RUN --mount=type=bind,source=inputs,target=/mnt \\\n    pip install"))
    view.event(StepStarted("2", "[2/2] RUN --mount=type=bind,source=inputs,target=/mnt \\\n    pip install"))
    view.event(StepLog("2", "Downloading 10%\rDownloading "))
    view.event(StepLog("2", "100%\nInstalled [red]psutil"))
    view.event(
        StepDone("2", "[2/2] RUN --mount=type=bind,source=inputs,target=/mnt \\\n    pip install", 3.21, cached=False)
    )
    view.end(BUILT)


def test_plain_lines() -> None:
    said = io.StringIO()
    play(PlainView(said))
    assert said.getvalue().splitlines() == [
        "building stack/mini",
        "  begin  [1/2] FROM base",
        "  cached [1/2] FROM base",
        "  begin  [2/2] RUN pip install",
        "    Downloading 100%",
        "    Installed [red]psutil",
        "    3.2s [2/2] RUN pip install",
        "flagbench/stack:mini built in 12.3s; also flagbench/stack:mini-0.1.0",
    ]


def test_a_terminal_keeps_a_line_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said = Terminal()
    play(TerminalView(said))
    text = said.getvalue()
    for line in ("building stack/mini", "cached [1/2] FROM base", "3.2s [2/2] RUN pip install", "built in 12.3s"):
        assert line in text
    # What is live is erased at the end; brackets of a log are no markup.
    assert "\x1b[2K" in text
    assert "[internal]" not in text.rsplit("building stack/mini", 1)[1].split("flagbench/stack:mini built")[1]


def test_a_quiet_view_tells_failures_alone() -> None:
    said = io.StringIO()
    view = QuietView(said)
    play(view)
    assert said.getvalue() == ""
    view.failed(BuildFailed("x", remedy="y", step="[2/2] RUN", lines=["last"]))
    assert said.getvalue() == "failed: [2/2] RUN\n  | last\n"


@pytest.mark.parametrize(
    ("stream", "quiet", "json", "kind"),
    [
        (Terminal(), False, False, TerminalView),
        (io.StringIO(), False, False, PlainView),
        (Terminal(), True, False, QuietView),
        (Terminal(), False, True, QuietView),
    ],
)
def test_the_view_fits_the_stream(stream: io.StringIO, quiet: bool, json: bool, kind: type) -> None:
    assert type(choose_view(quiet=quiet, json=json, stream=stream)) is kind
