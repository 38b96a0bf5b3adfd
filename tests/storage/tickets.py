"""Tickets, presigned by boto3 as `flagbench store ticket` does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

RECORD_SIZES = (2**16, 2**18, 2**20)
BUNDLE_SIZES = (2**20, 2**24)


def make_ticket(bucket: str, endpoint: str, run_id: str, nodes: int = 1, seconds: int = 3600) -> dict[str, Any]:
    """A ticket for a run, whose URLs name the server at `endpoint`."""
    import boto3
    from botocore.config import Config

    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, config=config)

    def upload(name: str, sizes: tuple[int, ...]) -> dict[str, Any]:
        where = {"Bucket": bucket, "Key": f"inbox/{run_id}/{name}"}
        puts = []
        for size in sizes:
            signed = {**where, "ContentLength": size, "IfNoneMatch": "*"}
            url = client.generate_presigned_url("put_object", signed, ExpiresIn=seconds)
            puts.append({"bytes": size, "url": url, "headers": {"If-None-Match": "*"}})
        return {"head": client.generate_presigned_url("head_object", where, ExpiresIn=seconds), "puts": puts}

    names = {f"node-{node}.tar.gz": BUNDLE_SIZES for node in range(nodes)}
    expires = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return {
        "schema": "ticket/v1",
        "run_id": run_id,
        "nodes": nodes,
        "store": f"s3://{bucket}",
        "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "uploads": {name: upload(name, sizes) for name, sizes in {"record.json": RECORD_SIZES, **names}.items()},
    }


def secrets_of(ticket: dict[str, Any]) -> set[str]:
    """The signatures of a ticket, each of which gives access."""
    found = set()
    for upload in ticket["uploads"].values():
        for url in (upload["head"], *(put["url"] for put in upload["puts"])):
            found.add(url.rpartition("X-Amz-Signature=")[2].partition("&")[0])
    return found
