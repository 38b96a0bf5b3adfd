"""Runs whose data are in a bucket: natively, in a container as the host prepares it, and what is left of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.manifests.load import load_catalog
from flagbench.runs.launchers.docker_command import DockerOptions, plan, this_host
from flagbench.runs.launchers.fetch import FetchedRequest, fetch
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench_core.exit_codes import ExitCode
from prepared_sets import CASE, SMALL, contents, prepare, put
from running import ENTRYPOINTS, need_megatron
from warmup import warm

pytestmark = pytest.mark.s3

TINY = Path(ENTRYPOINTS) / "flagbench_cases" / "cases" / "llama2_70b" / "tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


@pytest.fixture
def small(bucket: str, tmp_path: Path) -> str:
    """The address of a set that no run can use."""
    put(prepare(tmp_path / "out", SMALL), f"s3://{bucket}/x")
    return f"s3://{bucket}/x"


def run(case: str, *words: str) -> tuple[int, dict[str, Any], str]:
    """`python -m flagbench_cases CASE`: its exit code, its record, and what it said."""
    command = [sys.executable, "-m", "flagbench_cases", case, "--preset", "tiny", *words]
    environment = {**os.environ, **warm(ENTRYPOINTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, json.loads(ended.stdout), ended.stderr


def test_a_run_fetches_its_data_once(bucket: str, tmp_path: Path, proxy: Any, cache: Path) -> None:
    need_megatron()
    case, url = "llama2-70b", f"s3://{bucket}/sets/pile"
    files = {path.name: path.read_bytes() for path in TINY.glob("llama_00*")}
    with_format(prepare(tmp_path / "out", files, case=case), "megatron-indexed/v1")
    put(tmp_path / "out", url, case=case)
    words = ["--data", url, "--steps", "2"]
    code, described, said = run(case, *words, "--describe")
    assert (code, cache.exists()) == (0, False), said
    code, record, said = run(case, *words)
    assert code == 0, said
    assert record["sources"] == {"data": f"{url}/data"}
    assert record["config_digest"] == described["config_digest"]
    assert {path.name: path.read_bytes() for path in cache.glob("*/llama_00*")} == files
    proxy.requests.clear()
    code, record, said = run(case, "--data", url, "--steps", "1", "--max-samples", "1")
    assert code == ExitCode.USAGE
    assert not proxy.requests, "nothing is asked for a run that cannot be"


def with_format(out: Path, name: str) -> None:
    index = out / "data" / "prepared.json"
    index.write_text(json.dumps({**json.loads(index.read_bytes()), "format": name}))


def test_a_changed_object_ends_a_run_before_a_rank_starts(bucket: str, small: str, server: Any) -> None:
    key = f"x/data/files/{hashlib.sha256(SMALL['one.bin']).hexdigest()}"
    server.put_object(Bucket=bucket, Key=key, Body=b"SOME BYTES")
    code, record, _ = run(CASE, "--data", small, "--steps", "2")
    assert code == ExitCode.DATA
    assert (record["status"]["phase"], key in record["status"]["reason"]) == ("data", True)
    assert record["ranks"] == []
    assert record["sources"] == {"data": f"{small}/data"}


def test_what_is_not_there_is_told_before_a_run(
    small: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run(["run", "glm:cpu", "--preset", "tiny", "--data", f"{small}/nowhere"]) == ExitCode.DATA
    out, err = capfd.readouterr()
    assert (out, err.count("error:"), "/nowhere" in err) == ("", 1, True)


def test_a_container_gets_the_folder_and_no_credentials(bucket: str, small: str, tmp_path: Path, server: Any) -> None:
    catalog = load_catalog(claims=False)
    request = RunRequest(catalog.cases[CASE], catalog.stacks["cpu"], LocalOptions(data=small, weights=str(tmp_path)))
    fetched = fetch(request)
    assert isinstance(fetched, FetchedRequest)
    container = plan(fetched.request, DockerOptions(), {**os.environ, **fetched.environment}, this_host())
    mounted = {folder.target: folder.source for folder in container.folders}
    assert contents(mounted["/data"]) == SMALL
    assert mounted["/weights"] == str(tmp_path)
    assert container.environment["FLAGBENCH_DATA_SOURCE"] == f"{small}/data"
    assert not [name for name in container.environment if name.startswith("AWS_")]
    assert "--data=/data" in container.arguments
    server.delete_object(Bucket=bucket, Key="x/data/prepared.json")
    assert fetch(request) == ExitCode.DATA, "no container is started without its data"
