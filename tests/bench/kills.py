"""Kills the delivery of a record and a bundle to a real bucket, 100 times at random moments; nothing may be lost.

    python tests/bench/kills.py [--kills N] [--seed N]

It needs the S3 server that `.ci/storage` starts, named by FLAGBENCH_TEST_S3 and its keys; without it nothing is done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "entrypoints"))

from deliveries import BEGIN, bundle_of, push, start, waiting
from flagbench.stores import open_store
from unit.host.conftest import RECORD

BUNDLE_BYTES = 20 * 2**20


def main() -> int:
    """Print how many were killed where; 1 if anything is missing or damaged."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if "FLAGBENCH_TEST_S3" not in os.environ:
        print("kills: skipped, no S3 server (FLAGBENCH_TEST_S3)")
        return 0
    os.environ.update(
        AWS_ENDPOINT_URL=os.environ["FLAGBENCH_TEST_S3"],
        AWS_ACCESS_KEY_ID=os.environ["FLAGBENCH_TEST_S3_KEY"],
        AWS_SECRET_ACCESS_KEY=os.environ["FLAGBENCH_TEST_S3_SECRET"],
    )
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), arguments.kills, random.Random(arguments.seed))


class Announced(NamedTuple):
    """The ids of records, and of those with bundles, that were printed or kept: none of them may be lost."""

    records: set[str]
    bundles: set[str]


def measure(folder: Path, kills: int, moments: random.Random) -> int:
    """Deliver until enough deliveries were killed, finish each, and compare the bucket with what was announced."""
    import boto3

    server, bucket = boto3.client("s3", region_name="us-east-1"), f"flagbench-{uuid.uuid4().hex[:12]}"
    server.create_bucket(Bucket=bucket)
    address = f"s3://{bucket}/lab"
    bundle = folder / "bundle"
    bundle.write_bytes(moments.randbytes(BUNDLE_BYTES))
    span, killed, finished = 0.0, 0, 0
    announced = Announced(set(), set())
    try:
        while killed < kills:
            out = folder / uuid.uuid4().hex
            record = {**RECORD, "record_id": f"20260101T120000Z-{uuid.uuid4().hex[:8]}"}
            alive, printed, took = deliver(address, out, bundle, record, moments.uniform(0, span) if span else 60.0)
            # The quickest one's: the first is slow, and most would end before they are killed.
            span = min(span or took, took) if alive else span
            killed += not alive
            kept = [path.name for paths in waiting(out).values() for path in paths]
            if alive or printed or f"{record['record_id']}.json" in kept:
                announced.records.add(record["record_id"])
            if alive or printed or any(name.endswith(".tar.gz") for name in kept):
                announced.bundles.add(record["record_id"])
            finished += bool(kept)
            push(out)
        return verdict(server, bucket, address, bundle, announced, killed, finished)
    finally:
        for page in server.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for each in page.get("Contents", ()):
                server.delete_object(Bucket=bucket, Key=each["Key"])
        server.delete_bucket(Bucket=bucket)


def deliver(address: str, out: Path, bundle: Path, record: dict[str, Any], moment: float) -> tuple[bool, bool, float]:
    """Whether a delivery ended before `moment`, seconds from its beginning; whether it printed; how long it took."""
    child = start(address, out, bundle, record)
    assert child.stderr is not None
    if child.stderr.readline() != BEGIN:
        raise SystemExit("kills: a delivery did not begin")
    began = time.monotonic()
    try:
        child.wait(moment)
    except subprocess.TimeoutExpired:
        child.kill()
    took = time.monotonic() - began
    printed = child.communicate()[0].endswith(b"\n")
    return child.returncode == 0, printed, took


def verdict(
    server: Any, bucket: str, address: str, bundle: Path, announced: Announced, killed: int, finished: int
) -> int:
    """Compare the bucket with what was announced; print the result."""
    store, sha256 = open_store(address), bundle_of(bundle).sha256
    sound = {entry.record_id for entry in store.list() if entry.error is None}
    keys = {
        each["Key"]
        for page in server.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for each in page.get("Contents", ())
    }
    bundles = {name for name in announced.bundles if f"lab/bundles/{name}/node-0-{sha256}.tar.gz" in keys}
    lost = [f"record {name}" for name in announced.records - sound]
    lost += [f"bundle of {name}" for name in announced.bundles - bundles]
    told = {"kills": killed, "announced": len(announced.records), "finished_later": finished, "lost": sorted(lost)}
    print("kills: %s" % json.dumps(told))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
