"""Where the record of a job goes: a bucket with credentials from a Secret, or wherever a ticket in a Secret leads."""

from __future__ import annotations

from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes.options import (
    SESSION_VARIABLE,
    STORE_VARIABLES,
    TICKET_VARIABLE,
    JobOptions,
)
from flagbench.redaction import redact
from flagbench.request import RunOptions
from flagbench.s3 import S3Error, parse_address


def check_store(run: RunOptions, job: JobOptions) -> None:
    """Raise FlagbenchError (usage) unless the options name one place for the record, with credentials for it."""
    store, secret, ticket = job.store, job.store_secret, job.ticket_secret
    if ticket is not None:
        if store is not None or secret is not None:
            other = "--store" if store is not None else "--store-secret"
            raise FlagbenchError(
                f"--ticket-secret and {other} contradict each other: the ticket says where the record goes",
                remedy="give one of them",
            )
        if run.run_id is None:
            raise FlagbenchError(
                "--ticket-secret needs --run-id: a ticket is for one run",
                remedy="give --run-id and --nodes as they were given to `flagbench store ticket`",
            )
        return
    if store is None:
        if secret is not None:
            raise FlagbenchError(
                "--store-secret needs --store", remedy="say which bucket it is for: --store s3://BUCKET/PREFIX"
            )
        return
    if not store.lower().startswith("s3:"):
        raise FlagbenchError(
            f"--store {redact(store)!r} is not a bucket, and a pod's folders end with it",
            remedy="write --store s3://BUCKET/PREFIX, or keep the record with --out-pvc CLAIM",
        )
    try:
        parse_address(store)
    except S3Error as error:
        raise FlagbenchError(f"--store: {error.message}", remedy=error.remedy) from None
    if secret is None and not job.env_from_secret and job.template is None:
        raise FlagbenchError(
            "--store needs credentials",
            remedy="name a Secret with --store-secret or --env-from-secret, or give a --template whose service "
            "account has a role",
        )


def credentials(job: JobOptions) -> list[dict[str, Any]]:
    """Variables from Secrets, by exactly these keys: what else a Secret holds does not reach the run."""
    keys: dict[str, str | None] = {}
    if job.store_secret is not None:
        keys = dict.fromkeys((*STORE_VARIABLES, SESSION_VARIABLE), job.store_secret)
    elif job.ticket_secret is not None:
        keys = {TICKET_VARIABLE: job.ticket_secret}
    found = []
    for key, secret in keys.items():
        source: dict[str, Any] = {"name": secret, "key": key}
        if key == SESSION_VARIABLE:
            source["optional"] = True
        found.append({"name": key, "valueFrom": {"secretKeyRef": source}})
    return found
