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
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Catalog
from flagbench.cli import main
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.read import CLOCK_SKEW, RecordError, read_record
from flagbench.report import comparison_table, verdict_table
from flagbench.stores import FolderBlobs, Store
from flagbench.verify import compare_records, verify_claim

from . import hostile
from .conftest import RECORD

MakeRecord = Callable[..., bytes]
ROOT = Path(__file__).parents[3]
REPLAY = ROOT / "tests" / "unit" / "host" / "verify" / "replays" / "a100-1x8.json"
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


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "builder"), "FLAGBENCH_MANIFESTS": str(ROOT / "manifests"), **more}


def run_all(folder: Path, lines: list[list[str]], **more: str) -> list[Ended]:
    """The endings of many commands, in a process with little memory and little time."""
    (folder / "lines.json").write_text(json.dumps(lines))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder / "lines.json")],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    ended = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(ended) == len(lines), done.stderr[-2000:]
    return ended


def names_what_is_wrong(ended: Ended, code: int = ExitCode.DATA) -> bool:
    found, out, err = ended
    return (found, out) == (code, "") and err.startswith("error: ") and "\nfix: " in err and len(err) < 2000


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Ended]]:
    """How verify and compare end for each of them, and for names that no file has."""
    folder = tmp_path_factory.mktemp("named")
    paths = {name: str(path) for name, path in hostile.make(folder).items()}
    paths["/dev/zero"] = "/dev/zero"
    paths["a name of 5000 characters"] = f"{folder}/{'x' * 5000}.json"
    paths["a path of 300 folders"] = "a/" * 3000 + "x.json"
    paths["a name that is not UTF-8"] = os.fsdecode(os.fsencode(folder) + b"/\xff.json")
    paths["a name with half a character"] = f"{folder}/\ud800.json"
    good = str(REPLAY)
    lines = {name: [["verify", path]] for name, path in paths.items()}
    for name in paths.keys() - hostile.CONTENTS.keys():
        lines[name] += [["verify", good, "--baseline", paths[name]], ["compare", good, paths[name]]]
    ended = iter(run_all(folder, [line for name in lines for line in lines[name]], FLAGBENCH_STORE=str(folder / "s")))
    return {name: [next(ended) for _ in lines[name]] for name in lines}


def test_files_that_are_not_records_are_refused(named: dict[str, list[Ended]]) -> None:
    wrong = {name: ended for name, ended in named.items() if not all(map(names_what_is_wrong, ended))}
    assert wrong == {}


@pytest.mark.parametrize("source", ["/dev/zero", "/dev/null"])
def test_standard_input_that_is_not_a_record(source: str) -> None:
    descriptor = os.open(source, os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flagbench", "verify", "-"],
            env=environment(),
            stdin=descriptor,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(descriptor)
    assert names_what_is_wrong((done.returncode, done.stdout, done.stderr))


def test_a_shell_s_pipe_is_read(make_record: MakeRecord, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(make_record())
    line = f'"{sys.executable}" -m flagbench compare <(cat record.json) <(cat record.json) --json'
    done = subprocess.run(["bash", "-c", line], env=environment(), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["config"] == []


@pytest.fixture
def store(tmp_path: Path, make_record: MakeRecord) -> Store:
    """Two records on two days."""
    found = Store(FolderBlobs(tmp_path / "store"))
    found.put(make_record(record_id="the-older-one"))
    found.put(make_record(record_id="the-newer-one", created_at="2026-01-02T00:00:00Z"))
    return found


def with_checksum(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    path.with_name(f"{path.name}.sha256").write_text(line)


def test_one_bad_file_never_hides_the_others(store: Store, tmp_path: Path) -> None:
    stack = store.blobs.root / "results" / "v1" / "case=distilbert" / "stack=cpu"
    day = stack / "2026-01-02"
    bad = {path.name.removesuffix(".json") for path in hostile.make(day).values() if not path.is_dir()}
    for folder in ("9999-01-01", "not-a-day", "\u0662\u0660\u0662\u0666-01-01", "2026-02-31"):
        (stack / folder).mkdir()
        (stack / folder / f"{folder}-record.json").write_bytes(b"{}")
        bad.add(f"{folder}-record")
    (day / os.fsdecode(b"\xff\xff.json")).write_bytes(b"{}")
    (stack / "a-file").write_bytes(b"")
    (stack / "2026-01-03").symlink_to("2026-01-03")
    lines = [
        ["results", "ls", "--limit", "1000", "--json"],
        ["results", "ls", "--limit", "1000"],
        *(["results", "show", name, "--json"] for name in ("last", "last~1", "the-older-one", "the-n")),
        ["compare", "the-older-one", "the-newer-one", "--json"],
    ]
    listed, table, last, before, by_id, by_prefix, compared = run_all(
        tmp_path, lines, FLAGBENCH_STORE=str(store.blobs.root)
    )
    assert listed[0] == table[0] == 0
    assert [json.loads(ended[1])["record_id"] for ended in (last, before, by_id, by_prefix)] == [
        "the-newer-one", "the-older-one", "the-older-one", "the-newer-one",
    ]  # fmt: skip
    assert "note: " in last[2]
    assert compared[0] == 0
    entries = list(store.list())
    assert {entry.record_id for entry in entries if entry.problem is None} == {"the-older-one", "the-newer-one"}
    assert bad < {entry.record_id for entry in entries if entry.problem is not None}
    assert table[2].count("note: ") == len(entries) - 2 or len(table[2]) == 4000


def test_files_with_a_checksum_that_are_not_records_are_listed_as_damaged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLAGBENCH_STORE", str(store.blobs.root))
    day = store.blobs.root / "results" / "v1" / "case=distilbert" / "stack=cpu" / "2026-01-02"
    for name, content in hostile.CONTENTS.items():
        with_checksum(day / f"checked-{name}.json", content)
    assert main.run(["results", "ls", "--limit", "1000", "--json"]) == 0
    entries = {entry["record_id"]: entry for entry in json.loads(capsys.readouterr().out)["records"]}
    assert {name for name, entry in entries.items() if "error" not in entry} == {"the-older-one", "the-newer-one"}
    assert entries.keys() > {f"checked-{name}" for name in hostile.CONTENTS}
    for name in hostile.CONTENTS:
        with pytest.raises(FlagbenchError) as caught:
            store.get(f"checked-{name}")
        assert caught.value.code is ExitCode.DATA


@pytest.mark.parametrize(
    "changes",
    [
        {"record_id": "the-id-of-another"},
        {"case": "glm"},
        {"stack": "a100-cuda11.6"},
        {"created_at": "2026-01-03T00:00:00Z"},
    ],
)
def test_a_record_in_the_place_of_another_is_refused(
    store: Store, make_record: MakeRecord, changes: dict[str, str]
) -> None:
    path = Path(next(store.list()).location)
    with_checksum(
        path, make_record(**{"record_id": "the-newer-one", "created_at": "2026-01-02T00:00:00Z", **changes})
    )
    with pytest.raises(FlagbenchError) as caught:
        store.get("the-newer-one")
    assert caught.value.code is ExitCode.DATA
    assert store.get("the-older-one") == make_record(record_id="the-older-one")


def test_a_copy_in_a_wrong_place_does_not_hide_the_record(store: Store, make_record: MakeRecord) -> None:
    wrong = store.blobs.root / "results" / "v1" / "case=distilbert" / "stack=a100-cuda11.6" / "2026-01-01"
    with_checksum(wrong / "the-older-one.json", make_record(record_id="the-older-one"))
    wrong = wrong.parent.parent / "stack=zzz" / "2026-01-01"
    with_checksum(wrong / "the-older-one.json", b"{}")
    assert store.get("the-older-one") == make_record(record_id="the-older-one")


def test_a_record_made_within_the_skew_of_two_clocks_is_read(make_record: MakeRecord) -> None:
    now = datetime.now(timezone.utc)
    ahead = make_record(created_at=f"{now + CLOCK_SKEW - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}")
    assert read_record(ahead).case == "distilbert"
    with pytest.raises(RecordError):
        read_record(make_record(created_at=f"{now + CLOCK_SKEW + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"))


def bound_by_permissions() -> None:
    """Before exec: root gives up reading what is closed to its owner (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_an_unreadable_folder_or_file_hides_nothing(store: Store, make_record: MakeRecord) -> None:
    newest = Path(next(store.list()).location)
    closed = Path(
        store.put(make_record(record_id="in-a-closed-folder", stack="a100-cuda11.6")).location
    ).parent.parent
    for path in (closed, newest):
        path.chmod(0)
    try:
        done, shown = (
            subprocess.run(
                [sys.executable, "-m", "flagbench", *arguments],
                env=environment(FLAGBENCH_STORE=str(store.blobs.root)),
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=bound_by_permissions,
            )
            for arguments in (["results", "ls", "--json"], ["verify", str(newest)])
        )
    finally:
        closed.chmod(0o755)
    entries = {entry["record_id"]: entry for entry in json.loads(done.stdout)["records"]}
    assert done.returncode == 0
    assert {name for name, entry in entries.items() if "error" not in entry} == {"the-older-one"}
    assert "the-newer-one" in entries
    assert len(entries) == 3
    assert names_what_is_wrong((shown.returncode, shown.stdout, shown.stderr))


def test_a_store_whose_path_is_not_utf_8_is_listed(make_record: MakeRecord, tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    Store(FolderBlobs(root)).put(make_record())
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-m", "flagbench", "results", "ls", "--json"],
            env=environment(FLAGBENCH_STORE=str(root), PYTHONIOENCODING=encoding),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0
        location = json.loads(done.stdout)["records"][0]["location"]
        assert Path(location).parent.parent.parent.parent.parent.parent == root


@pytest.mark.parametrize(
    "address", ["file:///a%00b", "file://[x/", "~nobody-of-this-name/store", "x" * 5000, "/dev/null"]
)
def test_an_invalid_store_address_is_an_error(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["results", "ls"], ["results", "show", "last"], ["verify"], ["compare", "last", "last~1"]):
        code = main.run([*arguments, "--store", address])
        output = capsys.readouterr()
        if address.startswith("~"):  # a folder of this name, as for a shell; it is not there
            assert code == (0 if "ls" in arguments else ExitCode.DATA)
        else:
            assert names_what_is_wrong((code, output.out, output.err), ExitCode.USAGE)


# What a hostile writer would put in the place of a value.
_numbers = st.integers() | st.floats() | st.sampled_from([10**400, 1.7e308, 5e-324, 1e150, -1e150, 10**149])
_texts = st.text(st.characters(), max_size=20) | st.just("\ud800")
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


_base = {**json.loads(REPLAY.read_bytes()), **{key: RECORD[key] for key in ("telemetry",)}}
_base["telemetry"] = {"devices": [{"throttle_seconds": {"power": 1.5}, "foreign_processes": 0}]}


@cache
def whole_catalog() -> Catalog:
    return load_catalog(ROOT / "manifests")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(_places(_base)[1:]), _values), min_size=1, max_size=4))
def test_a_record_with_anything_in_it_is_shown_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    raw = copy.deepcopy(_base)
    for path, value in changes:
        place = raw
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    catalog = whole_catalog()
    try:
        record = read_record(json.dumps(raw).encode())
        base = read_record(REPLAY)
        comparison = compare_records(base, record)
        json.dumps(comparison.to_dict(), allow_nan=False).encode()
        comparison_table(comparison).encode()
        claim = catalog.claims["distilbert/a100-1x8-fp32"]
        result = verify_claim([record], claim, catalog.cases["distilbert"])
        json.dumps(result.to_dict(), allow_nan=False).encode()
        verdict_table([record], result).encode()
    except FlagbenchError as error:
        error.message.encode("utf-8", "backslashreplace")
