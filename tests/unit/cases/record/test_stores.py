"""Stores as the image side names and fills them: a folder, the folder of what waits, a ticket that is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.record import stores
from flagbench_cases.record.stores import Bundle, FolderStore
from flagbench_cases.record.unsent import Unsent
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3.ticket import in_seconds, parse_ticket
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

RECORD = {"record_id": "20240506-1", "case": "glm", "stack": "a100-cuda11.6", "created_at": "2024-05-06T07:08:09Z"}
KEY = "results/v1/case=glm/stack=a100-cuda11.6/2024-05-06/20240506-1.json"
LINE = json.dumps(RECORD)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "made.tar.gz"
    path.write_bytes(b"evidence")
    return Bundle(str(path), 1, hashlib.sha256(b"evidence").hexdigest(), 8)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "", "s3:x", "s3://b/x?secret=1", "https://host/x"])
def test_an_address_that_is_no_store(url: str) -> None:
    with refuses(UsageError, "--store") as caught:
        stores.open_store(url)
    assert "secret" not in caught.value.message + caught.value.remedy


def test_where_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_STORE", "/b")
    assert [each and each.name for each in map(stores.open_store, (None, "/a"))] == ["/b", "/a"]
    ticket = parse_ticket(json.dumps(TICKET).encode(), "the ticket")
    assert isinstance(stores.open_store(None, ticket), stores.TicketStore)
    monkeypatch.delenv("FLAGBENCH_STORE")
    bucket, folder = stores.open_store("s3://bucket/x?profile=ceph"), stores.open_store("file:///a%20b/../c")
    assert bucket is not None
    assert (bucket.name, bucket.meant_for) == ("s3://bucket/x?profile=ceph",) * 2
    assert folder is not None
    assert (folder.name, folder.meant_for) == ("/c", None)
    assert stores.open_store(None) is None


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    FolderStore(str(tmp_path / "new" / "store")).check()
    for unusable in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/new")):
        with refuses(UsageError):
            FolderStore(str(unusable)).check()


def test_a_record_and_a_bundle_in_a_folder(tmp_path: Path, bundle: Bundle) -> None:
    place = FolderStore(str(tmp_path / "store"))
    assert place.put_record(RECORD, LINE) == str(tmp_path / "store" / KEY)
    key = "bundles/20240506-1/node-1-%s.tar.gz" % bundle.sha256
    assert place.put_bundle("20240506-1", bundle) == str(tmp_path / "store" / key)
    assert place.put_bundle("20240506-1", bundle), "the same again changes nothing"
    assert files(tmp_path / "store") == {KEY, KEY + ".sha256", key}
    with refuses(CaseError, KEY, code=ExitCode.NOT_STORED):
        place.put_record(RECORD, LINE)


def test_a_bundle_from_another_file_system(tmp_path: Path, bundle: Bundle, tiny_disk: Path) -> None:
    place = FolderStore(str(tiny_disk))
    path = place.put_bundle("20240506-1", bundle)
    assert Path(path).read_bytes() == b"evidence"
    large = tmp_path / "large"
    large.write_bytes(os.urandom(200_000))
    with refuses(CaseError, "bundle", code=ExitCode.NOT_STORED):
        place.put_bundle("20240506-2", bundle._replace(path=str(large), sha256="0" * 64))
    assert len(files(tiny_disk)) == 1, "nothing is left of it"


@pytest.mark.parametrize("out", [False, True])
def test_what_waits_is_where_the_host_looks(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, out: bool
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "an out" if out else tmp_path / "data" / "flagbench" / "unsent"
    unsent = Unsent("20240506-1", "s3://bucket/x", str(folder) if out else None)
    assert shlex.split(unsent.command) == ["flagbench", "results", "push", *([str(folder)] if out else [])]
    unsent.keep_bundle(bundle)
    unsent.keep_record(LINE)
    kept = {"20240506-1.json": LINE + "\n", "20240506-1.node-1-%s.tar.gz" % bundle.sha256: "evidence"}
    assert files(folder) == {name + end for name in kept for end in ("", ".meant-for")}
    for name, content in kept.items():
        assert (folder / name).read_text() == content
        assert (folder / (name + ".meant-for")).read_text() == "s3://bucket/x"
    unsent.forget_bundle(bundle)
    unsent.forget_record()
    unsent.forget_record()  # as after `flagbench results push`
    assert files(folder) == ({"20240506-1.json"} if out else set()), "a record stays where --out asks for it"


def test_what_cannot_wait_does_not_say_that_it_does(bundle: Bundle, tiny_disk: Path) -> None:
    unsent = Unsent("20240506-1", "s3://bucket/x", str(tiny_disk))
    large = tiny_disk.parent / "large"
    large.write_bytes(bytes(200_000))
    with refuses(CaseError, code=ExitCode.NOT_STORED):
        unsent.keep_record("x" * 200_000)
    with refuses(CaseError, code=ExitCode.NOT_STORED):
        unsent.keep_bundle(bundle._replace(path=str(large)))
    assert files(tiny_disk) == set()


URL = "https://h/b/k?X-Amz-Signature=SECRET"
TICKET = {
    "schema": "ticket/v1",
    "run_id": "mine",
    "nodes": 2,
    "store": "s3://b/p",
    "expires_at": in_seconds(3600),
    "headers": {"If-None-Match": "*"},
    "uploads": dict.fromkeys(("record.json", "node-0.tar.gz", "node-1.tar.gz"), URL),
}


def test_a_ticket_is_read_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_TICKET", json.dumps(TICKET))
    found = stores.read_ticket(None)
    assert found is not None
    assert json.loads(found.encode()) == TICKET
    assert "FLAGBENCH_TICKET" not in os.environ, "the ranks do not inherit it"
    path = tmp_path / "ticket"
    uploads = dict.fromkeys(TICKET["uploads"], "https://h:65535/b/k")
    path.write_text(json.dumps({**TICKET, "run_id": "another", "uploads": uploads}))
    found = stores.read_ticket(str(path))
    assert found is not None
    assert found.run_id == "another"
    assert stores.read_ticket(None) is None
    with refuses(UsageError):
        stores.open_store("s3://bucket", found)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "null",
        "SECRET",
        {"schema": "ticket/v2"},
        {"nodes": 3},
        {"run_id": "../x"},
        {"expires_at": "soon"},
        {"store": "s3://b\x1b[2J"},
        {"headers": {"A": "x\r\ny"}},
        {"uploads": []},
        *(
            {"uploads": {**TICKET["uploads"], "node-0.tar.gz": url}}
            for url in (
                {},
                "file:///etc/passwd",
                "https://u:SECRET@h/k",
                "https://h/SECRET x",
                "https://h:SECRET/k",
                "https://h:65536/k",
            )
        ),
    ],
)
def test_a_damaged_ticket_is_refused_without_its_secrets(tmp_path: Path, content: str | dict[str, Any]) -> None:
    path = tmp_path / "ticket"
    path.write_text(content if isinstance(content, str) else json.dumps({**TICKET, **content}))
    with refuses(UsageError, path) as caught:
        stores.read_ticket(str(path))
    assert "SECRET" not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("name", ["missing", "", "nul\0"])
def test_a_ticket_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with refuses(UsageError, "--ticket"):
        stores.read_ticket(str(tmp_path / name))


def test_a_ticket_fits_its_run() -> None:
    ticket = parse_ticket(json.dumps(TICKET).encode(), "the ticket")
    stores.check_ticket(ticket, "mine", 2, 50)
    stores.check_ticket(ticket, None, 1, None)
    over = dataclasses.replace(ticket, expires_at="2024-01-01T00:00:00Z")
    for each, asked in (
        (ticket, ("another", 1, None)),
        (ticket, (None, 3, None)),
        (ticket, (None, 1, 90)),
        (over, (None, 1, None)),
    ):
        with refuses(UsageError):
            stores.check_ticket(each, *asked)


def test_a_ticket_without_urllib3_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with refuses(UsageError, "urllib3"):
        stores.TicketStore(parse_ticket(json.dumps(TICKET).encode(), "the ticket")).check()
