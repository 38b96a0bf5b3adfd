"""Anything named as a record or found in the store that is not one is a clear error, in bounded time and memory."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.report import comparison_table, verdict_table
from flagbench.verdict import compare_records, judge_speed, verify_claim
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import FULL_RECORD, REPLAY, places

from . import hostile

MakeRecord = Callable[..., bytes]
FLAGBENCH = (sys.executable, "-m", "flagbench")
MEMORY = 2**30
PR_CAPBSET_DROP = 24
SECONDS = 300
"""Far more than all of it takes on a slow machine, and less than a person would call forever."""

# Many command lines in one process: an interpreter's start would cost more than what is tested.
DRIVER = """
import contextlib, io, json, sys
from flagbench.cli import main
for arguments in json.load(open(sys.argv[1])):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main.run(arguments)
        except Exception as error:
            code = repr(error)
    print(json.dumps([code, out.getvalue()[:4000], err.getvalue()[:4000]]))
"""

Ended = tuple[int, str, str]


def run(*command: str, store: Path | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """A process that has, as its default, a store."""
    environment = {**os.environ, **({"FLAGBENCH_STORE": str(store)} if store else {}), **options.pop("env", {})}
    options = {"stdin": subprocess.DEVNULL, "text": True, **options}
    return subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, check=False, **options)


def run_all(folder: Path, lines: list[list[str]], store: Path) -> list[Ended]:
    """The endings of many commands, in a process with little memory and little time."""
    (folder / "lines.json").write_text(json.dumps(lines))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    done = run(sys.executable, "-c", DRIVER, str(folder / "lines.json"), store=store, preexec_fn=limit)
    ended = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(ended) == len(lines), done.stderr[-2000:]
    return ended


def names_what_is_wrong(ended: Ended, code: int = ExitCode.DATA) -> bool:
    found, out, err = ended
    return (found, out) == (code, "") and err.startswith("error: ") and "\nfix: " in err and len(err) < 2000


def test_files_that_are_not_records_are_refused(tmp_path: Path) -> None:
    paths = {name: str(path) for name, path in hostile.make(tmp_path).items()}
    contents = [["verify", paths[name]] for name in hostile.CONTENTS]
    others = [
        *(paths[name] for name in hostile.KINDS),
        "/dev/zero",
        f"{tmp_path}/{'x' * 5000}.json",
        "a/" * 3000 + "x.json",
        os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"),
        f"{tmp_path}/\ud800.json",
    ]
    good = str(REPLAY)
    lines = [
        *contents,
        *(["verify", path] for path in others),
        *(["verify", good, "--baseline", path] for path in others),
        *(["compare", good, path] for path in others),
    ]
    ended = zip(lines, run_all(tmp_path, lines, tmp_path / "store"))
    assert [(line, end) for line, end in ended if not names_what_is_wrong(end)] == []


def test_standard_input_without_an_end_is_not_a_record() -> None:
    with open("/dev/zero", "rb", buffering=0) as stream:
        done = run(*FLAGBENCH, "verify", "-", stdin=stream)
    assert names_what_is_wrong((done.returncode, done.stdout, done.stderr))


def test_a_shell_s_pipe_is_read() -> None:
    line = f'"{sys.executable}" -m flagbench compare <(cat "{REPLAY}") <(cat "{REPLAY}") --json'
    done = run("bash", "-c", line)
    assert done.returncode == 0
    assert json.loads(done.stdout)["config"] == []


@pytest.fixture
def store(tmp_path: Path, make_record: MakeRecord) -> Store:
    """Two records on two days."""
    found = Store(FolderBlobs(tmp_path / "store"))
    found.put(make_record(record_id="the-older-one"))
    found.put(make_record(record_id="the-newer-one", created_at="2026-01-02T00:00:00Z"))
    return found


def of_stack(store: Store, stack: str = "cpu") -> Path:
    """The folder of a stack's records."""
    return store.blobs.root / "results" / "v1" / "case=distilbert" / f"stack={stack}"


def with_checksum(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    path.with_name(f"{path.name}.sha256").write_text(line)


def test_one_bad_file_never_hides_the_others(store: Store, tmp_path: Path) -> None:
    stack = of_stack(store)
    day = stack / "2026-01-02"
    bad = {path.name.removesuffix(".json") for path in hostile.make(day).values() if not path.is_dir()}
    for folder in ("9999-01-01", "not-a-day", "\u0662\u0660\u0662\u0666-01-01", "2026-02-31"):
        with_checksum(stack / folder / f"{folder}-record.json", b"{}")
        bad.add(f"{folder}-record")
    (day / os.fsdecode(b"\xff\xff.json")).write_bytes(b"{}")
    (stack / "a-file").write_bytes(b"")
    (stack / "2026-01-03").symlink_to("2026-01-03")
    (stack / "2026-01-04").symlink_to(stack)
    lines = [
        ["results", "ls", "--limit", "1000", "--json"],
        ["results", "ls", "--limit", "1000"],
        *(["results", "show", name, "--json"] for name in ("last", "last~1", "the-older-one", "the-n")),
        ["compare", "the-older-one", "the-newer-one", "--json"],
    ]
    listed, table, *shown, compared = run_all(tmp_path, lines, store.blobs.root)
    assert listed[0] == table[0] == 0
    assert compared[0] == ExitCode.INVALID  # neither has a configuration
    assert [json.loads(out)["record_id"] for _, out, _ in shown] == [
        "the-newer-one", "the-older-one", "the-older-one", "the-newer-one",
    ]  # fmt: skip
    assert "note: " in shown[0][2]
    entries = list(store.list_records())
    assert {entry.record_id for entry in entries if entry.problem is None} == {"the-older-one", "the-newer-one"}
    assert bad < {entry.record_id for entry in entries if entry.problem is not None}
    assert [entry.record_id for entry in entries].count("a-file") == 1
    assert table[2].count("note: ") == len(entries) - 2 or len(table[2]) == 4000


def test_checked_files_that_are_not_records_are_damaged(store: Store) -> None:
    for name, content in hostile.CONTENTS.items():
        with_checksum(of_stack(store) / "2026-01-02" / f"checked-{name}.json", content)
    errors = {entry.record_id: entry.error for entry in store.list_records()}
    assert {name for name, error in errors.items() if error is None} == {"the-older-one", "the-newer-one"}
    for name in hostile.CONTENTS:
        assert errors[f"checked-{name}"]
        with pytest.raises(FlagbenchError) as caught:
            store.get(f"checked-{name}")
        assert caught.value.code is ExitCode.DATA


def test_a_record_in_the_place_of_another_is_refused(store: Store, make_record: MakeRecord) -> None:
    newer = {"record_id": "the-newer-one", "created_at": "2026-01-02T00:00:00Z"}
    for other in (
        {"record_id": "other"},
        {"case": "glm"},
        {"stack": "other"},
        {"created_at": "2026-01-03T00:00:00Z"},
    ):
        with_checksum(Path(next(store.list_records()).location), make_record(**{**newer, **other}))
        with pytest.raises(FlagbenchError) as caught:
            store.get("the-newer-one")
        assert caught.value.code is ExitCode.DATA
    assert store.get("the-older-one") == make_record(record_id="the-older-one")


def test_a_copy_in_a_wrong_place_does_not_hide_the_record(store: Store, make_record: MakeRecord) -> None:
    record = make_record(record_id="the-older-one")
    for stack, content in (("a100-cuda11.6", record), ("zzz", b"{}")):
        with_checksum(of_stack(store, stack) / "2026-01-01" / "the-older-one.json", content)
    assert store.get("the-older-one") == record


def test_a_record_ahead_of_this_machines_clock_is_read(make_record: MakeRecord) -> None:
    assert read_record(make_record(created_at="2199-01-01T00:00:00Z")).created_at.startswith("2199")


def bound_by_permissions() -> None:
    """Before exec: root gives up reading what is closed to its owner (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_an_unreadable_folder_or_file_hides_nothing(store: Store, make_record: MakeRecord) -> None:
    newest = Path(next(store.list_records()).location)
    store.put(make_record(record_id="in-a-closed-folder", stack="a100-cuda11.6"))
    closed = of_stack(store, "a100-cuda11.6")
    for path in (closed, newest):
        path.chmod(0)
    try:
        listed, shown = (
            run(*FLAGBENCH, *arguments, store=store.blobs.root, preexec_fn=bound_by_permissions)
            for arguments in (["results", "ls", "--json"], ["verify", str(newest)])
        )
        store.blobs.root.chmod(0)
        of_another = run(*FLAGBENCH, "fleet", store=store.blobs.root, preexec_fn=bound_by_permissions)
    finally:
        store.blobs.root.chmod(0o755)
        closed.chmod(0o755)
    assert of_another.returncode == ExitCode.USAGE
    assert listed.returncode == 0
    errors = {entry["record_id"]: entry.get("error") for entry in json.loads(listed.stdout)["records"]}
    assert errors.keys() > {"the-older-one", "the-newer-one"}
    assert len(errors) == 3
    assert [name for name, error in errors.items() if error is None] == ["the-older-one"]
    assert names_what_is_wrong((shown.returncode, shown.stdout, shown.stderr))


def test_a_store_whose_path_is_not_utf_8_is_listed(make_record: MakeRecord, tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    Store(FolderBlobs(root)).put(make_record())
    done = run(*FLAGBENCH, "results", "ls", "--json", store=root, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert Path(json.loads(done.stdout)["records"][0]["location"]).is_relative_to(root)


# What a hostile writer would put in the place of a value.
_numbers = st.integers() | st.floats() | st.sampled_from([10**400, 1.7e308, 5e-324, 1e150, -1e150, 10**149])
_texts = st.text(st.characters(), max_size=20) | st.just("\ud800")
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=75, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(places(FULL_RECORD)[1:]), _values), min_size=1, max_size=4))
def test_a_record_with_anything_in_it_is_shown_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    raw = copy.deepcopy(FULL_RECORD)
    for path, value in changes:
        place = raw
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        record = read_record(json.dumps(raw).encode())
        comparison = compare_records(read_record(REPLAY), record, CATALOG.cases["distilbert"])
        json.dumps(comparison.to_dict(), allow_nan=False).encode()
        comparison_table(comparison, judge_speed(comparison, CATALOG.cases["distilbert"])).encode()
        result = verify_claim([record], CATALOG.claims["distilbert/a100-1x8-fp32"], CATALOG.cases["distilbert"])
        json.dumps(result.to_dict(), allow_nan=False).encode()
        verdict_table([record], result).encode()
    except FlagbenchError as error:
        error.message.encode("utf-8", "backslashreplace")
