"""Real runs of a case that store their record and their bundles: in a bucket, on two nodes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deliveries import waiting
from flagbench.records.store import open_store
from flagbench_cases.record import stores
from flagbench_core.exit_codes import ExitCode
from running import CaseRun, Ended, free_port, run_case

pytestmark = [pytest.mark.s3, pytest.mark.image]

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "2"]
LISTED = {"config.json", "environment.json", "plan.json", "telemetry.jsonl", "MANIFEST.json"}


@pytest.fixture(autouse=True)
def needs_torch() -> None:
    pytest.importorskip("torch")


def objects(server: Any, bucket: str) -> dict[str, bytes]:
    found = server.list_objects_v2(Bucket=bucket).get("Contents", ())
    return {each["Key"]: server.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in found}


def inside(bundle: bytes) -> dict[str, bytes]:
    """The files of a bundle, each as its sums say."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    lines = [line.split("  ") for line in files.pop("SHA256SUMS").decode().splitlines()]
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    return files


def two_nodes(folder: Path, arguments: list[str], **environment: str) -> list[Ended]:
    """Both nodes of a job, to their end."""
    master = "127.0.0.1:%d" % free_port()
    runs = []
    for node in range(2):
        (folder / f"node-{node}").mkdir()
        job = ["--nodes", "2", "--node-rank", str(node), "--master", master]
        message = str(folder / f"message-{node}")
        env = {**environment, "FLAGBENCH_TERMINATION_LOG": message}
        runs.append(CaseRun(str(folder / f"node-{node}"), [*job, *arguments], isolated=False, env=env))
    return [run.wait() for run in runs]


def command_lines(run: CaseRun) -> str:
    """What `ps` shows of all processes while a run trains."""
    run.wait_for_steps(1, steps=1)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(found)


MARK = "lab/results/store-v1.json"


def test_a_run_stores_its_record_and_its_bundle(
    server: Any, bucket: str, tmp_path: Path, record_schema: dict[str, Any]
) -> None:
    address, message = f"s3://{bucket}/lab", tmp_path / "message"
    planted = {"HF_TOKEN": "hf_plantedplantedplanted", "NCCL_DEBUG": "http://user:plantedpassword@host"}
    env = {**planted, "FLAGBENCH_TERMINATION_LOG": str(message)}
    arguments = [*SHORT[:-1], "40", "--store", address, "--out", str(tmp_path / "out")]
    run = CaseRun(str(tmp_path), arguments, isolated=False, env=env)
    shown = command_lines(run)
    ended = run.wait()
    assert ended.code == 0, ended.stderr
    record = ended.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    store = open_store(address)
    assert store.get(record["record_id"]) == ended.lines[0].encode() + b"\n", "as it was printed, byte for byte"
    bundle = record["bundle"]
    key = f"lab/bundles/{record['record_id']}/node-0-{bundle['sha256']}.tar.gz"
    found = objects(server, bucket)
    assert set(found) == {key, MARK, f"lab/{stores.record_key(record)}"}
    assert (len(found[key]), hashlib.sha256(found[key]).hexdigest()) == (bundle["bytes"], bundle["sha256"])
    files = inside(found[key])
    assert set(files) == LISTED | {"rank-00000.facts", "rank-00000.steps"}
    assert json.loads(files["config.json"]) == record["config"]
    assert json.loads(files["plan.json"])["run_id"] == record["run_id"]
    assert os.listdir(tmp_path / "out") == [f"{record['record_id']}.json"], "nothing waits any more"
    secrets = [*planted.values(), "plantedpassword", os.environ["AWS_SECRET_ACCESS_KEY"]]
    texts = [ended.lines[0], ended.stderr, message.read_text(), shown, *(str(each) for each in files.values())]
    assert [secret for secret in secrets for text in texts if secret in text] == []


def test_a_run_whose_upload_failed_waits_and_says_so(bucket: str, proxy: Any, tmp_path: Path) -> None:
    proxy.fault = lambda method, path, count: None if MARK in path or method != "PUT" else (403, "AccessDenied")
    out, address = tmp_path / "out", f"s3://{bucket}/lab"
    first, second = two_nodes(tmp_path, [*SHORT, "--store", address, "--out", str(out)])
    assert (first.code, second.code) == (ExitCode.NOT_STORED, ExitCode.NOT_STORED)
    record = first.record
    assert record["status"]["state"] == "ok"
    for node, ended in enumerate((first, second)):
        message = json.loads((tmp_path / f"message-{node}").read_text())
        assert (message["exit_code"], message["state"]) == (ExitCode.NOT_STORED, "ok")
        assert "AccessDenied" in message["reason"]
        assert "results push" in ended.stderr
    kept = [path.name for path in waiting(out)[address]]
    assert len(kept) == 3
    assert f"{record['record_id']}.json" in kept
    assert f"{record['record_id']}.node-0-{record['bundle']['sha256']}.tar.gz" in kept


def test_a_store_that_cannot_be_used_costs_no_run(bucket: str, server: Any, tmp_path: Path) -> None:
    ended = run_case(str(tmp_path), *SHORT, "--store", f"s3://{bucket}-not", "--out", str(tmp_path / "out"))
    assert (ended.code, ended.status["phase"]) == (ExitCode.USAGE, "usage")
    assert "NoSuchBucket" in ended.status["reason"]
    assert not (tmp_path / "out").exists()


def test_a_bundle_without_a_store(tmp_path: Path) -> None:
    ended = run_case(str(tmp_path), *SHORT, "--bundle", str(tmp_path / "kept"))
    assert ended.code == 0, ended.stderr
    bundle = ended.record["bundle"]
    path = tmp_path / "kept" / "bundles" / ended.record["record_id"] / f"node-0-{bundle['sha256']}.tar.gz"
    assert inside(path.read_bytes())
    assert sum(each.is_file() for each in (tmp_path / "kept").rglob("*")) == 1
