"""The address of a store in a bucket, the kind of server that it is taken for, and what is found out by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.blobs import Blob, StoreError
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import open_store
from flagbench.records.store_doctor import probe
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import PROFILES, parse_address
from flagbench_core.s3.profiles import profile_of


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "profile", "again"),
    [
        ("s3://bucket", "bucket", "", None, "s3://bucket"),
        ("s3://bucket/", "bucket", "", None, "s3://bucket"),
        ("s3://my.bucket-1/a//b/", "my.bucket-1", "a/b/", None, "s3://my.bucket-1/a/b"),
        ("s3://bucket/Prüfung 1?profile=ceph", "bucket", "Prüfung 1/", "ceph", "s3://bucket/Prüfung 1?profile=ceph"),
        ("S3://bucket/x", "bucket", "x/", None, "s3://bucket/x"),
    ],
)
def test_the_parts_of_an_address(url: str, bucket: str, prefix: str, profile: str | None, again: str) -> None:
    address = parse_address(url)
    assert (address.bucket, address.prefix, address.profile, address.url) == (bucket, prefix, profile, again)
    assert open_store(url).url == again


@pytest.mark.parametrize(
    "url",
    [
        *("s3:", "s3:///x", "s3:bucket", "s3://b", "s3://bu cket", "s3://" + "b" * 64, "s3://[bucket/x"),
        *("s3://bucket/../x", "s3://bucket/a\nb", "s3://bucket/x#y", "s3://bucket/\udcff", "s3://bucket/\u202e"),
        *("s3://bucket?profile=none", "s3://bucket?profil=ceph", "s3://bucket?profile"),
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.remedy


def test_credentials_that_boto3_cannot_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {tmp_path}/missing\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    health = open_store("s3://bucket").health()
    assert (health.ok, "AWS_" in str(health.remedy)) == (False, True)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://AKIA:wJalrXUtnFEMI@bucket/x", "s3://wJalrXUtnFEMI@bucket", "s3://bucket?secret=wJalrXUtnFEMI"),
        *("s3:AKIA:wJalrXUtnFEMI@bucket", "s3://AKIA:wJalrXUtnFEMI\n@bucket"),
        "s3://AKIA:wJalrXUtnFEMI/" + "K7MDENG/" * 20 + "@bucket",
    ],
)
@pytest.mark.parametrize("command", ["results ls", "doctor --json"])
def test_keys_in_an_address_are_refused_and_not_repeated(
    flagbench: Callable[..., Any], command: str, url: str
) -> None:
    ended = flagbench(command, "--store", url)
    assert ended.code == ExitCode.USAGE
    assert "wJalrX" not in ended.out + ended.err
    assert "K7MDENG" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("endpoint", "profile"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "aws"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "aws"),
        ("https://oss-cn-hangzhou.aliyuncs.com", "oss"),
        ("https://amazonaws.com.example", "s3"),
        ("http://127.0.0.1:8000", "s3"),
        ("https://notaliyuncs.com", "s3"),
    ],
)
def test_the_kind_of_server_by_its_endpoint(endpoint: str, profile: str) -> None:
    assert profile_of(endpoint) is PROFILES[profile]


class Broken(FolderBlobs):
    """A store with a fault that servers were seen to have."""

    def __init__(self, root: Any, fault: str) -> None:
        super().__init__(root)
        self.fault = fault

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """As the fault has it."""
        if self.fault == "writes":
            raise StoreError("full", remedy="-")
        if self.fault == "overwrites" or (self.fault == "races" and "race" in key):
            self.delete(key)
            super().put_if_absent(key, content)
            return True
        return super().put_if_absent(key, content) or self.fault == "says it succeeded"

    def get(self, key: str, limit: int) -> bytes:
        """As the fault has it."""
        content = super().get(key, limit)
        return content[::-1][:-1] if self.fault == "reads" else content

    def list(self, prefix: str) -> Iterator[Blob]:
        """As the fault has it."""
        return iter(()) if self.fault == "lists" else super().list(prefix)

    def delete(self, key: str) -> None:
        """As the fault has it."""
        if self.fault != "removes":
            super().delete(key)

    def clear(self, prefix: str) -> None:
        """As the fault has it."""
        if self.fault != "removes":
            super().clear(prefix)


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        ("none", set()),
        ("writes", {"write"}),
        ("reads", {"read back", "never overwrite", "one of several writers wins"}),
        ("lists", {"list"}),
        ("overwrites", {"never overwrite", "one of several writers wins"}),
        ("says it succeeded", {"never overwrite", "one of several writers wins"}),
        ("races", {"one of several writers wins"}),
        ("removes", {"remove"}),
    ],
)
def test_a_faulty_store_is_found(tmp_path: Any, fault: str, failed: set[str]) -> None:
    checks = [*probe(Broken(tmp_path / "store", fault))]
    assert {check.name for check in checks if not check.ok} == failed
    assert [check.name for check in checks if check.name == "remove"] == ["remove"] * (fault != "writes")


def test_the_doctor_says_so(flagbench: Callable[..., Any], tmp_path: Any) -> None:
    ended = flagbench("store doctor --json --store", str(tmp_path / "store"))
    assert ended.json["safe"] is True
    assert [*(tmp_path / "store").iterdir()] == []
    (tmp_path / "file").write_text("")
    refused = flagbench("store doctor --store", str(tmp_path / "file"))
    assert (refused.code, "NOT" in refused.out.splitlines()[0]) == (ExitCode.USAGE, True)
