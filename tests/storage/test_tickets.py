"""Tickets on a real S3 server: what their URLs bind, what a holder may do with them, and what is collected."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bundles import bundle
from flagbench.cli import main, run_keep
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers import LaunchResult
from flagbench.s3 import PROFILES, S3Error, deliver, presigned
from flagbench.s3.presign import certificates, presign_head, presign_put
from flagbench.s3.ticket import SignedPut, SignedUpload, Ticket, parse_ticket
from flagbench.stores import Store, StoreError, holder, open_store
from flagbench.stores.bucket import BucketBlobs
from flagbench.stores.inbox import MARK_BYTES, Inbox
from flagbench.stores.issue_ticket import issue
from flagbench.stores.ticket import read_ticket, write_private
from flagbench.stores.waiting import waiting
from unit.host.conftest import RECORD, Ended

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[2]
RUN = "run-of-ticket"
PREFIX = "some/prefix"
ID = "20260101T120000Z-0001"


def record(**changes: Any) -> bytes:
    """As a run prints it."""
    return (
        json.dumps({**RECORD, "run_id": RUN, "system": {**RECORD["system"], "nodes": 2}, **changes}).encode() + b"\n"
    )


@pytest.fixture
def ticket(store: Store) -> Ticket:
    """A ticket of two nodes."""
    return issue(store, RUN, 2, timedelta(hours=1))


@pytest.fixture
def keys(server: Any, bucket: str) -> Callable[..., list[str]]:
    """The keys below the store's prefix that begin so."""

    def found(prefix: str = "") -> list[str]:
        listed = server.list_objects_v2(Bucket=bucket, Prefix=f"{PREFIX}/{prefix}")
        return [each["Key"].removeprefix(f"{PREFIX}/") for each in listed.get("Contents", ())]

    return found


def put(url: str, content: bytes, headers: dict[str, str]) -> int:
    """The status of a PUT, as the standard library alone makes it."""
    asked = urllib.request.Request(url, data=content, headers=headers, method="PUT")
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def smallest(ticket: Ticket, name: str = "record.json") -> SignedPut:
    return ticket.uploads[name].puts[0]


# -- what a URL binds ----------------------------------------------------------------------------------------------


def test_a_url_stores_once_and_nothing_but_what_it_says(ticket: Ticket, keys: Any) -> None:
    one = smallest(ticket)
    content, headers = b"x" * one.bytes, one.headers
    assert put(one.url, content, {}) == 403, "the header that forbids overwriting is signed"
    assert put(one.url, content, {"If-None-Match": '"x"'}) == 403
    assert put(one.url, content + b"x", headers) == 403, "so is the length"
    assert put(one.url, content[1:], headers) == 403
    other = urlsplit(one.url)
    for path in (other.path.replace(RUN, "run-2"), other.path.replace("record.json", "node-0.tar.gz")):
        assert put(other._replace(path=path).geturl(), content, headers) == 403, "and the key"
    assert keys() == []
    assert put(one.url, content, headers) == 200
    assert put(one.url, b"y" * one.bytes, headers) == 412
    assert put(ticket.uploads["record.json"].puts[1].url, b"y" * 2**18, headers) == 412
    assert keys() == [f"inbox/{RUN}/record.json"]


def test_every_url_is_signed_with_version_4_and_says_what_it_binds(ticket: Ticket) -> None:
    assert list(ticket.uploads) == ["record.json", "node-0.tar.gz", "node-1.tar.gz"]
    for upload in ticket.uploads.values():
        sizes = [one.bytes for one in upload.puts]
        assert sizes == sorted(sizes)
        for one in upload.puts:
            said = parse_qs(urlsplit(one.url).query)
            assert said["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
            assert said["X-Amz-SignedHeaders"] == ["content-length;host;if-none-match"]
            assert said["X-Amz-Expires"] == ["3600"]
    assert ticket.uploads["node-1.tar.gz"].puts[-1].bytes < 5 * 10**9


def test_an_expired_ticket_is_refused_with_words(
    ticket: Ticket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store.blobs, BucketBlobs)
    earlier = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - timedelta(hours=2)
    with monkeypatch.context() as past:
        past.setattr("botocore.auth.get_current_datetime", lambda *args, **more: earlier)
        signed = presign_put(store.blobs.bucket, f"inbox/{RUN}/record.json", 2**16, 3600)
        head = presign_head(store.blobs.bucket, f"inbox/{RUN}/record.json", 3600)
    old = SignedPut(2**16, signed.url, dict(signed.headers))
    assert put(old.url, b"x" * old.bytes, old.headers) == 403
    uploads = {**ticket.uploads, "record.json": SignedUpload(head.url, [old])}
    over = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    expired = dataclasses.replace(ticket, uploads=uploads, expires=over)
    assert "expired" in refused(expired, record()).message


def refused(ticket: Ticket, content: bytes) -> StoreError:
    """The error of an upload, in which nothing of a URL's query is repeated."""
    with pytest.raises(StoreError) as caught:
        holder.upload_record(ticket, content)
    assert caught.value.code is ExitCode.NOT_STORED
    told = f"{caught.value.message} {caught.value.remedy}"
    assert not any(word in told for word in ("X-Amz", "Signature", os.environ["AWS_ACCESS_KEY_ID"]))
    assert ticket.run_id in told
    return caught.value


@pytest.mark.parametrize(
    ("prepare", "word"),
    [
        (lambda server, bucket: server.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}), "versions"),
        (lambda server, bucket: server.put_object(
            Bucket=bucket, Key=f"{PREFIX}/inbox/{RUN}/node-1.tar.gz", Body=b"x"), RUN),
    ],
)  # fmt: skip
def test_where_there_is_no_ticket(store: Store, server: Any, bucket: str, prepare: Any, word: str) -> None:
    prepare(server, bucket)
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 1, timedelta(hours=1))
    assert word in caught.value.message


def test_neither_for_a_folder_nor_for_a_run_that_has_a_record(store: Store, tmp_path: Path) -> None:
    store.put(record())
    for place in (store, open_store(str(tmp_path))):
        with pytest.raises(FlagbenchError) as caught:
            issue(place, RUN, 1, timedelta(hours=1))
        assert caught.value.code in (ExitCode.USAGE, ExitCode.NOT_STORED)


def test_swift_has_a_ticket_only_for_who_accepts_what_it_does(bucket: str) -> None:
    swift = open_store(f"s3://{bucket}/{PREFIX}?profile=swift")
    with pytest.raises(FlagbenchError) as caught:
        issue(swift, RUN, 1, timedelta(hours=1))
    assert "--allow-overwrite" in caught.value.remedy
    assert issue(swift, RUN, 1, timedelta(hours=1), overwriting=True).nodes == 1


@pytest.mark.parametrize(
    ("answer", "word"), [((200, "OK"), "without the header"), (None, "a second put"), ((500, "InternalError"), "500")]
)
def test_a_server_that_does_not_keep_what_urls_say_is_found(
    bucket: str, proxy: Any, keys: Any, answer: tuple[int, str] | None, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:  # a server that ignores the header: it is signed as another, which means nothing to it
        monkeypatch.setitem(PROFILES, "ceph", dataclasses.replace(PROFILES["ceph"], create={"x-nothing": "true"}))
    else:
        proxy.fault = lambda method, path, count: answer if method == "PUT" else None
    with pytest.raises(StoreError) as caught:
        issue(open_store(f"s3://{bucket}/{PREFIX}?profile=ceph"), RUN, 1, timedelta(hours=1))
    assert word in caught.value.message
    assert keys() == []


# -- the holder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "reset", (500, "InternalError"), (503, "SlowDown")])
def test_a_holder_whose_answer_is_lost_stores_once(
    bucket: str, proxy: Any, fault: Any, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    ticket = issue(open_store(f"s3://{bucket}/{PREFIX}"), RUN, 2, timedelta(hours=1))
    before = sum(asked.startswith("PUT") for asked in proxy.requests)
    proxy.fault = lambda method, path, count: fault if method == "PUT" and count == before + 1 else None
    holder.upload_record(ticket, record())
    holder.upload_record(ticket, record())  # again is no error
    assert "used" in refused(ticket, record(preset="reference")).message
    (collected,) = (Inbox(store).collect(upload) for upload in Inbox(store).uploads())
    assert (collected.record_id, collected.problems) == (ID, ())
    assert store.get(ID) == record()


def test_a_network_that_fails_for_good(ticket: Ticket, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    dead = issue_at(proxy.url, ticket)
    proxy.fault = lambda method, path, count: "lost"
    assert "connection" in refused(dead, record()).message
    proxy.fault = lambda method, path, count: (403, "AccessDenied")
    assert "refuses" in refused(dead, record()).message


def issue_at(url: str, ticket: Ticket) -> Ticket:
    """The ticket with the proxy's address in its URLs."""
    return parse_ticket(ticket.encode().replace(os.environ["FLAGBENCH_TEST_S3"].encode(), url.encode()))


def test_over_tls(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    store = open_store(f"s3://{bucket}")
    ticket = issue(store, RUN, 1, timedelta(hours=1))
    monkeypatch.delenv("AWS_CA_BUNDLE")
    assert "AWS_CA_BUNDLE" in refused(ticket, record()).message
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    holder.upload_record(ticket, record())
    inbox = Inbox(store)
    assert [inbox.collect(upload).record_id for upload in inbox.uploads()] == [ID]


# -- collecting ----------------------------------------------------------------------------------------------------


@pytest.fixture
def upload(ticket: Ticket, tmp_path: Path) -> Callable[[int | None, bytes], None]:
    """Uploads a record (None) or a node's bundle."""

    def send(node: int | None, content: bytes) -> None:
        if node is None:
            holder.upload_record(ticket, content)
            return
        file = tmp_path / f"{node}.tar.gz"
        file.write_bytes(content)
        holder.upload_bundle(ticket, node, file)

    return send


def collect(store: Store) -> list[Any]:
    """What a collector makes of all that waits."""
    inbox = Inbox(store)
    return [inbox.collect(each) for each in inbox.uploads() if each.waits]


def test_record_and_bundles_are_kept_as_they_were_made_and_the_ticket_is_used(
    store: Store, upload: Any, ticket: Ticket, keys: Any, tmp_path: Path
) -> None:
    sound = {node: bundle(node=node, run_id=RUN, record_id=ID) for node in (0, 1)}
    upload(1, sound[1])
    (early,) = collect(store)
    assert (early.record_id, early.problems) == (None, ("its record has not arrived",))
    upload(None, record())
    (first,) = collect(store)
    assert (first.record_id, first.bundles, first.problems) == (ID, 1, ())
    assert store.get(ID) == record()
    upload(0, sound[0])  # a node that was slower
    (late,) = collect(store)
    assert (late.record_id, late.location, late.bundles) == (ID, None, 1)
    kept = store.bundles.of(ID)
    assert [each.place.node for each in kept] == [0, 1]
    for each in kept:
        store.bundles.get(each, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == sound[each.place.node]
    assert collect(store) == []
    assert put(smallest(ticket).url, b"x" * 2**16, smallest(ticket).headers) == 412, "used for good"
    assert len(keys("inbox/")) == 3


def test_marks_outlive_every_ticket_and_no_longer(store: Store, upload: Any, keys: Any, monkeypatch: Any) -> None:
    upload(None, record())
    collect(store)
    inbox = Inbox(store)
    (mark,) = inbox.uploads()
    assert inbox.forget(mark) == 0
    monkeypatch.setattr("flagbench.stores.inbox._OUTLIVES", timedelta(0))
    assert inbox.forget(mark) == 1
    assert keys("inbox/") == []


@pytest.mark.parametrize(
    ("uploads", "kept", "word"),
    [
        ({None: record(run_id="run-2")}, [], "run-2"),
        ({None: b'{"schema": "record/v1"}\n'}, [], "not a valid"),
        ({None: b"\xff\xfe" * 10}, [], "UTF-8"),
        ({None: record(), 0: b"no bundle"}, [None], "node-0"),
        ({None: record(), 0: bundle(node=1), 1: bundle(node=1)}, [None, 1], "node-0"),
        ({None: record(), 0: bundle(record_id="20260101T120000Z-0002")}, [None], "node-0"),
        ({None: record(system={**RECORD["system"], "nodes": 1}), 1: bundle()}, [None], "no such node"),
    ],
)
def test_what_is_not_sound_stays_and_keeps_nothing_else_back(
    store: Store, upload: Any, keys: Any, uploads: dict[int | None, bytes], kept: list[int | None], word: str
) -> None:
    for node, content in uploads.items():
        upload(node, content)
    (found,) = collect(store)
    assert any(word in problem for problem in found.problems), found
    assert [bool(store.find(ID)), *(each.place.node for each in store.bundles.of(ID))] == [
        None in kept,
        *(node for node in kept if node is not None),
    ]
    assert [each.problems for each in collect(store)] == [found.problems] or None in kept
    inbox = Inbox(store)
    for each in inbox.uploads():
        inbox.discard(each)
    assert collect(store) == []
    assert keys("inbox/") != [], "a discarded ticket is used, too"


def test_another_records_id_gets_neither_record_nor_bundle(store: Store, upload: Any) -> None:
    others = record(run_id="run-of-another", stack="a100-cuda11.6")
    store.put(others)
    upload(None, record())
    upload(0, bundle())
    (found,) = collect(store)
    assert ID in found.problems[0]
    assert (store.get(ID), store.bundles.of(ID)) == (others, [])


def test_two_collectors_at_once(store: Store, upload: Any, bucket: str) -> None:
    upload(0, bundle())
    upload(None, record())
    inboxes = [Inbox(open_store(f"s3://{bucket}/{PREFIX}")) for _ in range(2)]
    seen = [(inbox, each) for inbox in inboxes for each in inbox.uploads()]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda i=i, e=e: found.append(i.collect(e))) for i, e in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.problems for each in found] == [(), ()]
    again = seen[0][0].collect(seen[0][1])  # one that looked before the other had finished
    assert (again.problems, again.location) == ((), None)
    assert store.get(ID) == record()
    assert len(store.bundles.of(ID)) == 1


def test_a_collector_that_another_one_overtakes_in_the_middle_of_a_bundle(
    upload: Any, bucket: str, proxy: Any, store: Store
) -> None:
    """It reads a large bundle in parts; after the first, a mark takes the bundle's place."""
    upload(0, bundle({"large": random.Random(1).randbytes(2**20)}))
    upload(None, record())
    inbox, done = Inbox(open_store(f"s3://{bucket}/{PREFIX}")), []
    (seen,) = inbox.uploads()

    def fault(method: str, path: str, count: int) -> None:
        if method == "GET" and "node-0" in path and not done:
            done.append(collect(store))

    proxy.fault = fault
    found = inbox.collect(seen)
    assert (found.bundles, found.problems) == (0, ())
    assert [each.bundles for each in done[0]] == [1]
    assert len(store.bundles.of(ID)) == 1


def test_what_was_collected_counts_as_delivered_and_what_was_discarded_does_not(
    store: Store, upload: Any, ticket: Ticket
) -> None:
    """A holder that repeats its upload, as after a lost answer, may be slower than a collector."""
    sound = bundle()
    upload(None, record())
    upload(0, sound)
    collect(store)
    upload(None, record())
    upload(0, sound)
    assert "used" in refused(ticket, record(preset="reference")).message
    upload(1, sound)
    inbox = Inbox(store)
    assert [inbox.discard(each) for each in inbox.uploads()] == [1]
    with pytest.raises(StoreError, match="used"):
        upload(1, sound)


def test_a_bucket_whose_etags_are_no_sums_has_no_tickets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of objects that are encrypted with keys of a KMS."""
    real = presigned.Client.head
    monkeypatch.setattr(presigned.Client, "head", lambda *args: real(*args)._replace(etag="0" * 32))
    with pytest.raises(StoreError, match="MD5"):
        issue(store, RUN, 1, timedelta(hours=1))


def test_a_ticket_that_could_not_be_read_is_not_made(store: Store) -> None:
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 90_000, timedelta(hours=1))
    assert (caught.value.code, "nodes" in caught.value.remedy) == (ExitCode.USAGE, True)


def test_certificates_are_those_of_boto3_and_may_be_a_folder(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\nca_bundle = {tmp_path}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert certificates() == str(tmp_path)
    presigned.opened_client(str(tmp_path))
    with pytest.raises(S3Error, match="certificates"):
        presigned.opened_client(str(tmp_path / "missing"))


@contextlib.contextmanager
def killed_at(proxy: Any, number: int, command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """A command that is killed when its `number`th changing request has arrived, whose answer it never sees."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = 0

    def fault(method: str, path: str, count: int) -> str | None:
        nonlocal seen
        if method in ("PUT", "POST", "DELETE"):
            seen += 1
            if seen == number:
                process.send_signal(signal.SIGKILL)
                return "lost"
        return None

    proxy.fault = fault
    process.wait(timeout=60)
    proxy.fault = lambda method, path, count: None
    yield


def test_a_collector_killed_after_any_of_its_writes_loses_nothing(
    store: Store, upload: Any, bucket: str, proxy: Any
) -> None:
    sound = bundle(node=0, record_id=ID, run_id=RUN)
    upload(0, sound)
    upload(None, record())
    path = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
    command = [sys.executable, "-m", "flagbench", "store", "collect", "--store", f"s3://{bucket}/{PREFIX}"]
    for number in (1, 1, 1, 1):  # the bundle, its mark, the record, its mark: each gets one step further
        with killed_at(proxy, number, command, path):
            waits = any(each.waits for each in Inbox(store).uploads())
            complete = store.find(ID) == [ID] and len(store.bundles.of(ID)) == 1
            assert waits or complete
    collect(store)
    assert store.get(ID) == record()
    assert [each.place.node for each in store.bundles.of(ID)] == [0]


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def typed(server: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the command line in this process; nothing of a URL's query may be in what it says."""

    def run(*arguments: str) -> Ended:
        ended = Ended(main.run(arguments), *capsys.readouterr())
        assert not any(word in ended.out + ended.err for word in ("X-Amz", os.environ["AWS_SECRET_ACCESS_KEY"]))
        return ended

    return run


def test_the_commands(bucket: str, tmp_path: Path, typed: Any) -> None:
    address, file = f"s3://{bucket}/{PREFIX}", tmp_path / "ticket.json"
    made = typed("store", "ticket", "--store", address, "--run-id", RUN, "--nodes", "2", "-o", str(file), "--json")
    assert made.code == 0, made.err
    assert "credential" in made.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(made.out)["run_id"] == RUN
    ticket = read_ticket(file)
    again = typed("store", "ticket", "--store", address, "-o", str(file))
    assert (again.code, read_ticket(file)) == (ExitCode.USAGE, ticket), "one ticket never replaces another"
    kept = tmp_path / "bundle"
    kept.write_bytes(bundle())
    holder.upload_bundle(ticket, 0, kept)
    holder.upload_record(ticket, record())
    assert json.loads(typed("results", "ls", "--store", address, "--json").out)["records"] == []
    collected = typed("store", "collect", "--store", address, "--json")
    assert collected.code == 0, collected.err
    (found,) = json.loads(collected.out)["collected"]
    assert (found["record_id"], found["bundles"]) == (ID, 1)
    assert json.loads(typed("store", "collect", "--store", address, "--json").out)["collected"] == []
    shown = typed("results", "show", "last", "--store", address)
    assert "node-0-" in shown.out
    pulled = typed("results", "pull", "--bundles", "--store", address, "--json")
    assert pulled.code == 0, pulled.err
    assert [each["record_id"] for each in json.loads(pulled.out)["bundles"]] == [ID]
    (there,) = (tmp_path / "data" / "flagbench" / "store" / "bundles" / ID).iterdir()
    assert there.read_bytes() == bundle()
    assert typed("results", "rm", "last", "--yes", "--store", address).code == 0
    assert open_store(address).bundles.of(ID) == []


def test_one_runs_upload_keeps_no_other_back(
    bucket: str, typed: Any, store: Store, upload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a temporary folder that cannot be used nor a bug of ours."""
    address, other = f"s3://{bucket}/{PREFIX}", "another-run"
    upload(None, record())
    upload(0, bundle())
    holder.upload_record(
        issue(store, other, 1, timedelta(hours=1)), record(run_id=other, record_id="20260101T120000Z-0002")
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    ended = typed("store", "collect", "--store", address, "--json")
    assert (ended.code, "TMPDIR" in ended.err) == (ExitCode.NOT_STORED, True)
    (failed,) = json.loads(ended.out)["failed"]
    assert (failed["run_id"], [each["run_id"] for each in json.loads(ended.out)["collected"]]) == (RUN, [other])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("flagbench.stores.inbox.check_bundle", lambda path: {}["bug"])
    ended = typed("store", "collect", "--store", address)
    assert (ended.code, "KeyError" in ended.err, RUN in ended.err) == (ExitCode.BUG, True, True)
    ended = typed("store", "collect", "--store", address, "--discard", RUN, "--json")
    assert (ended.code, json.loads(ended.out)["discarded"]) == (0, [RUN])
    assert "no uploads wait" in typed("store", "collect", "--store", address, "--discard", RUN).err


def kept(ticket: Ticket, folder: Path, code: int, own: str) -> tuple[bool, int]:
    """What `flagbench run --ticket` does after a run that left its bundle in `folder`."""
    asked = types.SimpleNamespace(bundle=str(folder), options=types.SimpleNamespace(ticket="ticket.json", out=None))
    return run_keep.keep(LaunchResult(record(), code), asked, open_store(own), ticket)  # type: ignore[arg-type]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder in which a run left a bundle."""
    folder = tmp_path / "bundle"
    (folder / "bundles" / ID).mkdir(parents=True)
    content = bundle()
    name = f"node-0-{hashlib.sha256(content).hexdigest()}.tar.gz"
    (folder / "bundles" / ID / name).write_bytes(content)
    return folder


def test_a_run_ends_well_if_a_collector_was_quick(
    store: Store, ticket: Ticket, upload: Any, left: Path, tmp_path: Path
) -> None:
    upload(0, bundle())  # by the image
    upload(None, record())
    collect(store)
    assert kept(ticket, left, 0, str(tmp_path / "own")) == (True, 0)
    assert not any(place.keys() or place.bundles.all() for _, place in waiting())


@pytest.mark.parametrize("lost", [False, True])
def test_where_the_image_could_not_upload_this_process_does_unless_the_bundle_is_lost(
    store: Store, ticket: Ticket, left: Path, tmp_path: Path, lost: bool
) -> None:
    folder, code = (tmp_path, ExitCode.NOT_STORED) if lost else (left, ExitCode.OK)
    assert kept(ticket, folder, ExitCode.NOT_STORED, str(tmp_path / "own")) == (True, code)
    assert [each.bundles for each in collect(store)] == [int(not lost)]


def test_a_ticket_is_used_where_the_own_store_fails(
    store: Store, ticket: Ticket, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_text("a file")
    assert kept(ticket, left, 0, str(tmp_path / "own")) == (False, ExitCode.NOT_STORED)
    assert "results push" not in capsys.readouterr().err, "nothing waits"
    assert [each.bundles for each in collect(store)] == [1]


def test_what_waits_for_a_ticket_is_pushed_with_it(bucket: str, tmp_path: Path, typed: Any, ticket: Ticket) -> None:
    address, file, out = f"s3://{bucket}/{PREFIX}", tmp_path / "ticket.json", tmp_path / "out"
    write_private(file, ticket.encode())
    room = out / "unsent" / "0123456789abcdef"
    waits = open_store(str(room))
    waits.put(record())
    folder = room / "bundles" / ID
    folder.mkdir(parents=True)
    content = bundle()
    (folder / f"node-0-{hashlib.sha256(content).hexdigest()}.tar.gz").write_bytes(content)
    (room / "meant-for").write_text(f"ticket:{RUN}")
    without = typed("results", "push", str(out))
    assert without.code == ExitCode.NOT_STORED
    assert "--ticket" in without.err
    pushed = typed("results", "push", str(out), "--ticket", str(file), "--json")
    assert pushed.code == 0, pushed.err
    said = json.loads(pushed.out)
    assert [len(said["stored"]), len(said["bundles"])] == [1, 1]
    assert [each.bundles for each in collect(open_store(address))] == [1]
    assert json.loads(typed("results", "push", str(out), "--ticket", str(file), "--json").out)["stored"] == []
    assert MARK_BYTES < 2**16
