"""Prepared folders go to a bucket whole or not at all, and never take the place of others unasked."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode
from prepared_sets import CASE, SMALL, call, command, contents, get, large, prepare, put
from running import wait_until

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "cache"))


def keys(server: Any, bucket: str) -> list[str]:
    return [entry["Key"] for entry in server.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_the_command_uploads_what_is_prepared(bucket: str, tmp_path: Path, server: Any) -> None:
    out, url = prepare(tmp_path / "out", SMALL), f"s3://{bucket}/sets/glm"
    prepare(out, {"w.bin": b"weights"}, "weights")
    code, printed, said = call("prepare", CASE, "-o", str(out), "--to", url, "--json")
    assert code == 0, said
    assert printed["folders"]["data"]["url"] == f"{url}/data"
    assert printed["folders"]["data"]["folder"] == str(out / "data")
    assert printed["run"].endswith(f"--data {url}")
    found = keys(server, bucket)
    assert [key for key in found if key.endswith(".json")] == [
        "sets/glm/data/prepared.json",
        "sets/glm/weights/prepared.json",
    ]
    for name, facts in printed["folders"]["data"]["files"].items():
        body = server.get_object(Bucket=bucket, Key=f"sets/glm/data/files/{facts['sha256']}")["Body"].read()
        assert body == SMALL[name]


def test_the_index_is_what_makes_a_folder(bucket: str, tmp_path: Path, proxy: Any) -> None:
    """Where an upload ends before it is put, there is nothing to fetch; the next one completes it."""
    out = prepare(tmp_path / "out", SMALL)
    proxy.fault = lambda method, path, count: (
        (403, "AccessDenied") if (method, path[-5:]) == ("PUT", ".json") else None
    )
    with pytest.raises(CaseError) as caught:
        put(out, f"s3://{bucket}/x")
    assert caught.value.code is ExitCode.ENGINE
    with pytest.raises(CaseError, match="no prepared data"):
        get(f"s3://{bucket}/x")
    proxy.fault = lambda method, path, count: None
    put(out, f"s3://{bucket}/x")
    assert contents(get(f"s3://{bucket}/x")["data"]["folder"]) == SMALL


def test_other_data_are_refused_before_anything_is_sent(bucket: str, tmp_path: Path, proxy: Any) -> None:
    put(prepare(tmp_path / "out", SMALL), f"s3://{bucket}/x")
    other = prepare(tmp_path / "other", {"one.bin": b"other bytes"})
    proxy.requests.clear()
    with pytest.raises(CaseError) as caught:
        put(other, f"s3://{bucket}/x")
    assert (caught.value.code, "--force" in caught.value.remedy) == (ExitCode.USAGE, True)
    assert {request.split()[0] for request in proxy.requests} == {"GET"}
    put(other, f"s3://{bucket}/x", force=True)
    assert contents(get(f"s3://{bucket}/x")["data"]["folder"]) == {"one.bin": b"other bytes"}


def test_of_two_writers_one_wins(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/x"
    outs = [prepare(tmp_path / str(number), {"one.bin": bytes([number]) * 9}) for number in range(4)]

    def write(out: Path) -> int:
        try:
            put(out, url)
        except CaseError as error:
            return int(error.code)
        return 0

    with ThreadPoolExecutor(4) as pool:
        codes = [*pool.map(write, outs)]
    assert sorted(codes) == [0, 2, 2, 2]
    won = outs[codes.index(0)]
    assert contents(get(url)["data"]["folder"]) == contents(str(won / "data"))


def test_damaged_files_are_not_uploaded(bucket: str, tmp_path: Path, server: Any) -> None:
    out = prepare(tmp_path / "out", SMALL)
    (out / "data" / "one.bin").write_bytes(b"some bites")
    with pytest.raises(CaseError, match=r"one\.bin") as caught:
        put(out, f"s3://{bucket}/x")
    assert caught.value.code is ExitCode.DATA
    assert not keys(server, bucket)


def test_a_bucket_that_keeps_versions_is_refused(bucket: str, tmp_path: Path, server: Any) -> None:
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(CaseError, match="versions"):
        put(prepare(tmp_path / "out", SMALL), f"s3://{bucket}/x")
    assert not keys(server, bucket)


def test_an_interrupted_upload_is_finished_by_the_next(bucket: str, tmp_path: Path, proxy: Any, server: Any) -> None:
    out, url = prepare(tmp_path / "out", {"large.bin": large()}), f"s3://{bucket}/x"
    held = proxy.hold("PUT", past=1)
    process = command("prepare", CASE, "-o", str(out), "--to", url)
    wait_until(held.is_set, 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    proxy.release()
    assert process.returncode == ExitCode.INTERRUPTED, said
    assert (out / "data" / "prepared.json").is_file(), "what was prepared is kept"
    assert not keys(server, bucket)
    put(out, url)
    assert contents(get(url)["data"]["folder"]) == contents(str(out / "data"))
    assert "Uploads" not in server.list_multipart_uploads(Bucket=bucket)


def test_credentials_stand_nowhere(tmp_path: Path, bucket: str) -> None:
    """Neither those of an address, which is refused, nor those of the environment."""
    out = prepare(tmp_path / "out", SMALL)
    for url in (f"s3://key:hunter2@{bucket}/x", f"s3://{bucket}/x?token=hunter2"):
        code, printed, said = call("prepare", CASE, "-o", str(out), "--to", url, "--json")
        assert (code, printed) == (ExitCode.USAGE, None)
        assert "hunter2" not in said
    for words in (["--check", "--to", "s3://bucket"], ["--to", "folder"], ["--to", ""]):
        assert call("prepare", CASE, *words, "-o", str(out))[0] == ExitCode.USAGE
    code, printed, said = call("prepare", CASE, "-o", str(out), "--to", f"s3://{bucket}/x", "--json")
    assert code == 0
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in said + json.dumps(printed)
