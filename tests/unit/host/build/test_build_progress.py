"""What a build tells a person: lines around the client's progress, or failures alone where quiet was asked."""

import io

from flagbench.build.progress import Progress
from flagbench.build.results import TierResult
from flagbench.engines.base import BuildFailed

TAGS = ("flagbench/stack:mini", "flagbench/stack:mini-0.1.0")
BUILT = TierResult("stack/mini", "sha256:a", "sha256:b", TAGS, skipped=False, seconds=12.34)
FAILED = BuildFailed("x", remedy="y", step="[2/2] RUN", lines=["last"])


def test_the_clients_progress_is_shown_with_the_time_and_the_tags():
    said = io.StringIO()
    progress = Progress(stream=said)
    assert progress.show is said
    progress.failed(FAILED)
    assert said.getvalue() == "", "the client has shown it"
    progress.built(BUILT)
    assert all(word in said.getvalue() for word in ("12.3s", *TAGS))


def test_quiet_tells_failures_alone():
    said = io.StringIO()
    progress = Progress(quiet=True, stream=said)
    assert progress.show is None
    progress.built(BUILT)
    assert said.getvalue() == ""
    progress.failed(FAILED)
    assert said.getvalue() == "failed: [2/2] RUN\n  | last\n"
