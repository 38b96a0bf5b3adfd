"""A bundle: equal evidence makes equal bytes, everything in it is listed, and no credential is."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import time
import tracemalloc
from pathlib import Path

import pytest

from flagbench_cases.record import bundle
from flagbench_cases.record.stores import Bundle
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from unit.cases.record.runs import step

pytestmark = pytest.mark.image

AWS_SECRET = "plantedSECRETplanted/PLANTED+planted1234"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """The spool of node 1: two ranks of its own, and one that it received from elsewhere."""
    folder = tmp_path / "spool"
    folder.mkdir()
    for rank in (0, 2, 3):
        writer = RankSpool(str(folder), rank)
        writer.reserve(1000)
        for _ in range(5):
            writer.step(step())
        writer.fact("rank", node=rank // 2, host="h")
    (folder / "plan.json").write_text(json.dumps({"config": {"seed": 0}, "argv": ["distilbert"]}))
    (folder / "telemetry.jsonl").write_text('{"power": 1.0}\n{"power": NaN}\n{"pow')
    (folder / "rank-00003.part").write_text("not of the evidence")
    return folder


def made(folder: Path, spool: Path, name: str = "b", **environment: str) -> Bundle:
    origin = bundle.Origin(
        "20240506-1", "run-1", 1, {"seed": 0}, {"OMP_NUM_THREADS": "1", "HOME": "/h", **environment}
    )
    (folder / name).mkdir()
    return bundle.write(str(folder / name), str(spool), range(2, 4), origin)


def contents(found: Bundle) -> dict[str, bytes]:
    with tarfile.open(found.path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_a_bundle_has_the_evidence_of_its_node_and_says_so(tmp_path: Path, spool: Path) -> None:
    found = made(tmp_path, spool)
    inside = contents(found)
    sums = inside.pop("SHA256SUMS").decode()
    assert sums == "".join(f"{hashlib.sha256(inside[name]).hexdigest()}  {name}\n" for name in sorted(inside))
    ranks = {"rank-%05d.%s" % (rank, kind) for rank in (2, 3) for kind in ("facts", "steps")}
    assert set(inside) == {
        *("config.json", "environment.json", "plan.json", "telemetry.jsonl", "MANIFEST.json"),
        *ranks,
    }
    of = json.loads(inside["MANIFEST.json"])
    assert (of["record_id"], of["run_id"], of["node"]) == ("20240506-1", "run-1", 1)
    for name in ("plan.json", "telemetry.jsonl", "rank-00002.facts"):
        assert inside[name] == (spool / name).read_bytes(), "unchanged, byte for byte"
    (tmp_path / "rank-00002.steps").write_bytes(inside["rank-00002.steps"])
    assert len(SpoolReader(str(tmp_path), 2).steps()) == 5
    assert len(inside["rank-00002.steps"]) < 1000, "without the space for more steps"
    assert json.loads(inside["environment.json"]) == {"OMP_NUM_THREADS": "1"}
    assert (os.path.getsize(found.path), hashlib.sha256(Path(found.path).read_bytes()).hexdigest()) == (
        found.bytes,
        found.sha256,
    )


def test_equal_evidence_makes_equal_bytes(tmp_path: Path, spool: Path) -> None:
    first = made(tmp_path, spool, "first")
    for path in spool.iterdir():
        os.utime(path, (1, time.time() - 1e6))
    second = made(tmp_path, spool, "second", LANGUAGE="not of the list")
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()
    with tarfile.open(first.path) as archive:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive} == {(0, 0, 0, "", 0o644)}
    assert Path(first.path).read_bytes()[4:8] == bytes(4), "no time in the gzip header"


def test_no_credential_is_in_a_bundle(tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hunter2hunter2@host:9000")
    writer = RankSpool(str(spool), 2)
    messages = [
        "cannot open s3://AKIAABCDEFGHIJKLMNOP:hidden@bucket/x",
        "the key %s is refused" % AWS_SECRET,
        "https://h/b?X-Amz-Signature=0123456789abcdef",
        "user:hunter2hunter2@host said no",
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz",
    ]
    for message in messages:
        writer.fact("failure", message=message, nested={"password": "hunter3", "list": [message]})
    (spool / "plan.json").write_text(json.dumps({"argv": ["--set=token=" + AWS_SECRET], "host": "h"}))
    (spool / "telemetry.jsonl").write_text('{"half of a line": "password=hunter4')
    environment = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_AUTH_TOKEN": "hunter5hunter5",
        "CUDA_PROXY": "http://user:hunter6@proxy",
        "LD_PRELOAD": AWS_SECRET,
    }
    inside = contents(made(tmp_path, spool, **environment))
    whole = b"\n".join(inside.values())
    planted = ("hunter2", "hunter3", "hunter4", "hunter5", "hunter6", "hidden", AWS_SECRET, "hf_abc", "0123456789ab")
    assert [secret for secret in planted if secret.encode() in whole] == []
    kept = json.loads(inside["environment.json"])
    assert kept["NCCL_SOCKET_IFNAME"] == "eth0"
    assert set(kept) == {"OMP_NUM_THREADS", *environment}
    facts = [json.loads(line) for line in inside["rank-00002.facts"].splitlines()]
    assert [fact["kind"] for fact in facts] == ["rank"] + ["failure"] * 5


def test_a_large_spool_takes_little_memory(tmp_path: Path, spool: Path) -> None:
    line = json.dumps({"devices": [{"power": 1.5, "clocks": ["fast " * 40] * 12}]}) + "\n"
    (spool / "telemetry.jsonl").write_text(line * 8000)
    tracemalloc.start()
    try:
        made(tmp_path, spool)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
