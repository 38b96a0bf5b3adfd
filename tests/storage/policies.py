"""The policy of docs/object-storage.md for the users of the test server, and whose keys a test uses."""

from __future__ import annotations

import json
import os

import pytest

from pages import read_page

OWNER, GUEST = "test", "guest"
"""The users that `.ci/storage` makes."""


def documented_policy(bucket: str, prefix: str) -> str:
    """The text of the page with the names of a bucket, a prefix in it, its owner and the guest filled in."""
    text = dict(read_page("object-storage.md").steps)["policy.json"]
    for placeholder, name in (("BUCKET", bucket), ("PREFIX", prefix), ("OWNER", OWNER), ("WRITER", GUEST)):
        assert placeholder in text
        text = text.replace(placeholder, name)
    return text


def write_only_policy(bucket: str, prefix: str) -> str:
    """The same policy, under which the guest cannot read anything, not even what it wrote."""
    policy = json.loads(documented_policy(bucket, prefix))
    policy["Statement"].append({**policy["Statement"][0], "Effect": "Deny", "Action": ["s3:GetObject"]})
    return json.dumps(policy)


def become_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the keys of the guest for all clients that are opened from now on."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_GUEST_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_GUEST_SECRET"])


def become_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the keys of the owner again."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_SECRET"])
