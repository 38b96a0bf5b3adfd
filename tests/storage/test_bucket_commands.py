"""`flagbench` on a store in a bucket: a run, its record on another machine, and a store that fails after the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.store import open_store
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import RECORD
from warmup import warm

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[2]
SHORT = ["run", "distilbert:cpu", "--preset", "tiny", "--data", "synthetic", "--steps", "2"]


def ids(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The records that a copy stored, by its --json."""
    return [each["record_id"] for each in json.loads(ended.stdout)["stored"]]


def test_a_run_is_stored_and_copied_with_its_bundle(flagbench: Any, bucket: str, server: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    address = f"s3://{bucket}/lab"
    ran = flagbench(*SHORT, "--store", address, "--json")
    assert ran.returncode == 0, ran.stderr
    (listed,) = json.loads(flagbench("results", "ls", "--store", address, "--json").stdout)["records"]
    record = json.loads(ran.stdout)
    assert listed["record_id"] == record["record_id"]
    assert listed["location"].startswith(address)
    for each in server.list_objects_v2(Bucket=bucket, Prefix="lab/")["Contents"]:
        server.copy_object(Bucket=bucket, Key=f"copy{each['Key'][3:]}", CopySource=f"{bucket}/{each['Key']}")
    copy = f"s3://{bucket}/copy"
    assert json.loads(flagbench("results", "show", "last", "--json", "--store", copy).stdout) == record
    assert (
        flagbench("verify", "last", "--store", copy).returncode
        == flagbench("verify", "last", "--store", address).returncode
    )
    assert [each.place.node for each in open_store(copy).bundles.find(record["record_id"])] == [0]
    assert flagbench("results", "rm", "last", "--yes", "--store", address).returncode == 0
    assert json.loads(flagbench("results", "ls", "--store", address, "--json").stdout)["records"] == []


def test_pages_are_put_beside_the_records(flagbench: Any, bucket: str, server: Any) -> None:
    open_store(f"s3://{bucket}/lab").put(json.dumps(RECORD).encode())
    made = flagbench("report", "--store", f"s3://{bucket}/lab", "--out", f"s3://{bucket}/report")
    assert made.stdout.strip() == f"s3://{bucket}/report/index.html", made.stderr
    page = server.get_object(Bucket=bucket, Key="report/index.html")
    assert page["ContentType"] == "text/html; charset=utf-8"
    assert f"record-{RECORD['record_id']}.html".encode() in page["Body"].read()


def test_a_record_that_could_not_be_stored_is_pushed_later(flagbench: Any, bucket: str, proxy: Any) -> None:
    pytest.importorskip("torch")
    address = f"s3://{bucket}/lab"
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if method == "PUT" else None
    assert flagbench(*SHORT, "--store", address).returncode == ExitCode.USAGE, "found before the run"
    proxy.fault = lambda method, path, count: None if "store-v1" in path or method != "PUT" else (403, "AccessDenied")
    ran = flagbench(*SHORT, "--store", address)
    assert ran.returncode == ExitCode.NOT_STORED, ran.stderr
    record = json.loads(ran.stdout)
    assert record["status"]["state"] == "ok"
    assert "results push" in ran.stderr
    failed = flagbench("results", "push", "--json")
    assert failed.returncode == ExitCode.NOT_STORED
    assert [each["name"] for each in json.loads(failed.stdout)["failed"]] == [record["record_id"]] * 2
    proxy.fault = lambda method, path, count: None
    pushed = flagbench("results", "push", "--json")  # to where it was meant for
    assert (pushed.returncode, ids(pushed)) == (0, [record["record_id"]])
    assert json.loads(flagbench("results", "show", "last", "--json", "--store", address).stdout) == record
    assert ids(flagbench("results", "push", "--json")) == []


def test_a_record_survives_a_kill_while_it_is_being_stored(
    flagbench: Any, bucket: str, proxy: Any, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    address = f"s3://{bucket}/lab"
    reached = threading.Event()

    def hang(method: str, path: str, count: int) -> str | None:
        if method == "PUT" and "/case" in path:
            reached.set()
            release.wait(60)
        return None

    release = threading.Event()
    proxy.fault = hang
    path = os.pathsep.join(str(ROOT / name) for name in ("builder", "entrypoints"))
    run = subprocess.Popen(
        [sys.executable, "-m", "flagbench", *SHORT, "--store", address],
        env={**os.environ, "TMPDIR": str(tmp_path), **warm(path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert reached.wait(120)
    finally:
        run.kill()
        run.wait()
        proxy.fault = lambda method, path, count: None
        release.set()
    pushed = flagbench("results", "push", "--json")
    assert (pushed.returncode, len(ids(pushed))) == (0, 1), pushed.stderr
    assert len(json.loads(flagbench("results", "ls", "--store", address, "--json").stdout)["records"]) == 1


def test_the_doctor_of_a_bucket(flagbench: Any, bucket: str, server: Any, proxy: Any) -> None:
    def doctor() -> tuple[int, bool, list[str]]:
        """The exit code, whether records are safe, and the checks that failed; nothing is left there."""
        ended = flagbench("store", "doctor", "--store", f"s3://{bucket}", "--json")
        assert server.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
        answer = json.loads(ended.stdout)
        failed = [check["name"] for check in answer["checks"] if not check["ok"]]
        return ended.returncode, answer["safe"], failed

    assert doctor() == (0, True, [])
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "list-type" in path else None
    assert doctor()[:2] == (ExitCode.USAGE, False)
    proxy.fault = lambda method, path, count: None
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert doctor()[:2] == (ExitCode.USAGE, False)
    assert flagbench(*SHORT, "--store", f"s3://{bucket}").returncode == ExitCode.USAGE


def test_the_doctor_names_uploads_that_were_never_collected(flagbench: Any, bucket: str, server: Any) -> None:
    for key, content in (("1/record.json", b"{}"), ("1/node-0.tar.gz", b"x"), ("2/record.json", b"")):
        server.put_object(Bucket=bucket, Key=f"lab/inbox/{key}", Body=content)
    answer = json.loads(flagbench("store", "doctor", "--store", f"s3://{bucket}/lab", "--json").stdout)
    (inbox,) = (check for check in answer["checks"] if check["name"] == "inbox")
    assert (answer["safe"], inbox["ok"]) == (True, True)
    assert "uploads that were never collected: 2;" in inbox["detail"]
    assert f"aws s3 cp --recursive s3://{bucket}/lab/inbox/ inbox" in inbox["detail"]


NOWHERE = "s3://flagbench-nowhere"


@pytest.mark.parametrize(
    "words",
    [
        ["results", "ls"],
        ["store", "doctor"],
        SHORT,
        ["push", "distilbert:cpu", "--to", NOWHERE],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_bucket_that_does_not_exist_is_a_usage_error(typed: Any, words: list[str]) -> None:
    ended = typed(*words, *(() if "--to" in words else ("--store", NOWHERE)))
    assert (ended.code, "NoSuchBucket" in ended.err + ended.out) == (ExitCode.USAGE, True)


def test_what_keeps_all_files_back_is_said_once(flagbench: Any, proxy: Any, tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for number, file in enumerate(files):
        file.write_text(json.dumps({**RECORD, "record_id": f"20260101T120000Z-000{number}"}))
    pushed = flagbench("results", "push", *map(str, files), "--store", NOWHERE, "--json")
    assert (pushed.returncode, pushed.stderr.count("error: ")) == (ExitCode.NOT_STORED, 1)
    assert [each["name"] for each in json.loads(pushed.stdout)["failed"]] == [str(file) for file in files]
    assert len(proxy.requests) == 1, "a store that fails is tried once"


@pytest.mark.parametrize("command", ["results ls", "results show last"])
def test_a_server_that_fails_is_no_usage_error(typed: Any, bucket: str, proxy: Any, command: str) -> None:
    proxy.fault = lambda method, path, count: (503, "SlowDown")
    assert typed(*command.split(), "--store", f"s3://{bucket}").code == ExitCode.ENGINE


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", ExitCode.ENGINE),
        ("AWS_PROFILE", "there-is-none", ExitCode.USAGE),
        ("AWS_SECRET_ACCESS_KEY", "another", ExitCode.USAGE),
    ],
)
def test_why_a_listing_fails_decides_the_exit_code(
    typed: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: ExitCode
) -> None:
    monkeypatch.setenv(variable, value)
    assert typed("results", "ls", "--store", f"s3://{bucket}").code == code
