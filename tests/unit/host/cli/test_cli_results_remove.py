"""`flagbench results rm` and `prune` remove what they are asked to, of what flagbench made, and nothing else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from flagbench import prune
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.records.store import Store
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, MakeRecord

FAILED = {"state": "failed", "phase": "train", "reason": "a rank died", "exit_code": 4}


@pytest.fixture(autouse=True)
def filled(store: Store, make_record: MakeRecord) -> None:
    """Four records; record-2 failed, record-4 is of today."""
    for day in (1, 2, 3):
        status = {"status": FAILED} if day == 2 else {}
        store.put(make_record(record_id=f"record-{day}", created_at=f"2026-01-0{day}T00:00:00Z", **status))
    now = datetime.now(timezone.utc) - timedelta(minutes=1)
    store.put(make_record(record_id="record-4", created_at=f"{now:%Y-%m-%dT%H:%M:%SZ}"))


def ids(store: Store) -> list[str]:
    return [entry.record_id for entry in store.list()]


def test_rm_removes_the_named_records_and_their_checksums(store: Store, flagbench: Flagbench) -> None:
    assert flagbench("results rm record-1 record-3 --yes").code == 0
    assert ids(store) == ["record-4", "record-2"]
    left = {path.name for path in Path(store.blobs.location("results/v1")).rglob("*") if path.is_file()}
    assert left == {f"record-{n}.json{suffix}" for n in (2, 4) for suffix in ("", ".sha256")}


def test_rm_takes_last_a_prefix_and_a_damaged_record(store: Store, flagbench: Flagbench) -> None:
    (removed,) = flagbench("results rm last --yes --json").json["removed"]
    assert (removed["kind"], removed["name"]) == ("record", "record-4")
    assert removed["size"] > 100
    Path(store.blobs.location(next(store.list()).blob.key)).write_bytes(b"{}")
    assert flagbench("results rm record-3 --yes").code == 0
    assert flagbench("results rm record-1 --yes").code == 0
    assert flagbench("results rm rec --yes").code == 0
    assert ids(store) == []


@pytest.mark.parametrize(
    ("command", "answer", "left"),
    [(["rm", "record-1"], "y", 3), (["rm", "record-1"], "", 4), (["prune", "--older-than", "2026-01-02"], "n", 4)],
)
def test_a_terminal_is_asked(store: Store, command: list[str], answer: str, left: int) -> None:
    master, slave = pty.openpty()
    with os.fdopen(master, "wb", buffering=0) as keyboard:
        line = [sys.executable, "-m", "flagbench", "results", *command]
        process = subprocess.Popen(line, stdin=slave, stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        keyboard.write(f"{answer}\n".encode())
        out, _ = process.communicate()
    assert process.returncode == 0
    assert b"record-1" in out
    assert len(ids(store)) == left


def removable(flagbench: Flagbench, options: str) -> list[str]:
    shown = flagbench(f"results prune {options} --json").json
    assert shown["bytes"] == sum(one["size"] for one in shown["removable"])
    return [one["name"] for one in shown["removable"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--older-than 30d", ["record-3", "record-2", "record-1"]),
        ("--older-than 2026-01-03", ["record-2", "record-1"]),
        ("--older-than 2026-01-02T12:00:00Z", ["record-2", "record-1"]),
        ("--state failed", ["record-2"]),
        ("--keep 3", ["record-1"]),
        ("--keep 1 --older-than 1w", ["record-2", "record-1"]),
        ("--case glm", []),
        ("--stack cpu --state ok", ["record-4", "record-3", "record-1"]),
    ],
)
def test_prune_means_the_records_for_which_all_options_hold(
    store: Store, flagbench: Flagbench, options: str, expected: list[str]
) -> None:
    assert removable(flagbench, options) == expected
    assert len(ids(store)) == 4
    assert flagbench(f"results prune {options}").code == (ExitCode.USAGE if expected else 0)  # no terminal, no --yes
    assert flagbench(f"results prune {options} --yes --dry-run").code == 0
    assert len(ids(store)) == 4
    assert flagbench(f"results prune {options} --yes").code == 0
    assert len(ids(store)) == 4 - len(expected)


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("rm record-1 rec --yes", ExitCode.USAGE, "rec"),
        ("rm record-1 no-such-record --yes", ExitCode.DATA, "no-such-record"),
        ("rm record-1 ../store --yes", ExitCode.USAGE, "../store"),
        ("rm record-1", ExitCode.USAGE, "--yes"),
        ("rm record-1 --json", ExitCode.USAGE, "--yes"),
        ("prune --yes", ExitCode.USAGE, "--older-than"),
        *((f"prune --yes --older-than {when}", ExitCode.USAGE, "--older-than") for when in ("soon", "30m", "99999w")),
        ("prune --yes --case distilbrt", ExitCode.USAGE, "distilbrt"),
        ("ls --since soon", ExitCode.USAGE, "--since"),
    ],
)
def test_errors_and_missing_confirmation_remove_nothing(
    store: Store, flagbench: Flagbench, line: str, code: ExitCode, named: str
) -> None:
    ended = flagbench(f"results {line}")
    assert (ended.code, named in ended.err) == (code, True)
    assert len(ids(store)) == 4


def test_prune_keeps_files_that_are_not_records(store: Store, flagbench: Flagbench) -> None:
    foreign = Path(next(store.list()).location).with_name("somebody-else-s.json")
    foreign.write_bytes(b"{}")
    assert flagbench("results prune --older-than 2100-01-01 --yes").code == 0
    assert foreign.exists()
    assert [entry.record_id for entry in store.list() if entry.problem is None] == []


def test_a_record_that_cannot_be_removed_keeps_no_other(store: Store, flagbench: Flagbench) -> None:
    # A folder in the place of the checksum: even root cannot unlink it.
    checksum = Path(next(store.list()).location + ".sha256")
    checksum.unlink()
    (checksum / "x").mkdir(parents=True)
    ended = flagbench("results prune --keep 0 --yes")
    assert (ended.code, "record-4" in ended.err) == (ExitCode.NOT_STORED, True)
    assert ids(store) == []


def removable_images(*images: tuple[str, ...], remove: Callable[[str], None]) -> list[prune.Removable]:
    """Which of the images of an engine, given by their tags, can be removed; the first one has the id sha256:0."""
    listed = [
        {"Id": f"sha256:{number}", "RepoTags": list(tags) or None, "Labels": {prune.IMAGE_LABEL: "x"}, "Size": 1000}
        for number, tags in enumerate(images)
    ]

    def list_images(filters: dict[str, str]) -> list[dict[str, Any]]:
        assert filters == {"label": prune.IMAGE_LABEL}
        return listed

    client = SimpleNamespace(api=SimpleNamespace(images=list_images), images=SimpleNamespace(remove=remove))
    return prune.images(client, load_catalog(claims=False))


def test_only_our_images_without_a_current_name_are_removed() -> None:
    gone: list[str] = []
    found = removable_images(
        ("flagbench/glm:cpu", "flagbench/glm:cpu-0.1.0"),
        ("flagbench/glm:cpu-0.0.9", "localhost/flagbench/glm:cpu-0.0.9"),
        (),
        ("registry.example.com/bench/glm:cpu-0.0.9", "flagbench/glm:cpu-0.0.9"),
        ("flagbench/stack:cpu",),
        ("flagbench/glm:a100",),
        remove=gone.append,
    )
    assert [one.name for one in found] == ["flagbench/glm:cpu-0.0.9", "sha256:2"]
    for one in found:
        one.remove()
    assert gone == ["flagbench/glm:cpu-0.0.9", "localhost/flagbench/glm:cpu-0.0.9", "sha256:2"]


def test_an_image_in_use_is_named() -> None:
    def refuse(name: str) -> None:
        raise APIError("conflict", explanation="it is used by container 0123")

    (found,) = removable_images((), remove=refuse)
    with pytest.raises(FlagbenchError, match=r"sha256:0 .* container 0123") as caught:
        found.remove()
    assert caught.value.code is ExitCode.ENGINE
