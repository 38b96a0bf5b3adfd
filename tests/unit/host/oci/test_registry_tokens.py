"""A registry's tokens: asked for what is done, renewed, and never given to another host."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, digest_of
from flagbench.oci.registry import RegistryPlace
from flagbench.oci.workspace import workspace
from places import quiet
from token_registries import ACCOUNT, LAYER, Server, blob, serving


def test_a_token_is_asked_for_what_is_done(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    sent: list[int] = []
    assert place.put_blob(blob(tmp_path), sent.append) == "uploaded"
    assert (registry.blobs[digest_of(b"content")], sum(sent)) == (b"content", 7)
    assert registry.tokens == [(ACCOUNT, ["repository:team/x:pull"]), (ACCOUNT, ["repository:team/x:pull,push"])]
    assert place.put_manifest(b"{}", OCI_MANIFEST, ("1",)), "it lists referrers itself"
    assert registry.manifests["1"] == registry.manifests[digest_of(b"{}")] == b"{}"
    assert len(registry.tokens) == 2


def test_a_token_that_runs_out_is_renewed(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    registry.expires = 1
    assert place.put_blob(blob(tmp_path), lambda count: None) == "uploaded"
    registry.expires = 100
    (tmp_path / "blob").write_bytes(b"another")
    other = Blob(Descriptor("application/x", digest_of(b"another"), 7), lambda show: tmp_path / "blob")
    with pytest.raises(FlagbenchError) as caught:
        place.put_blob(other, lambda count: None)
    assert caught.value.code is ExitCode.ENGINE


def test_an_upload_at_another_host_gets_no_credentials(registry: Server, tmp_path: Path) -> None:
    with serving() as other:
        registry.location = f"http://{other.host}/bucket/session?signed=1"
        other.faults = [("PUT ", 201, {})]
        assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet) == "uploaded"
        ((request, headers),) = other.sent
    assert request.startswith("PUT /bucket/session?signed=1&digest=")
    assert "Authorization" not in headers


def test_another_host_cannot_ask_for_credentials(registry: Server, tmp_path: Path) -> None:
    with serving() as other:
        registry.location = f"http://{other.host}/v2/team/x/blobs/uploads/session"
        with pytest.raises(FlagbenchError) as caught:
            RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet)
        assert caught.value.code is ExitCode.ENGINE
        assert other.tokens == []
        assert all("Authorization" not in headers for _, headers in other.sent)


@pytest.mark.parametrize("token", [b"<html>", b"[]", b'{"token": 3}'])
def test_a_token_service_that_fails_in_the_middle_is_named(token: bytes, registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    assert place.put_manifest(b"{}", OCI_MANIFEST, ())
    registry.expires, registry.token = 1, token
    with pytest.raises(FlagbenchError) as caught, workspace():
        place.put_blob(blob(tmp_path), quiet)
    assert caught.value.code is ExitCode.ENGINE
    assert "token" in caught.value.message


def test_an_endless_answer_is_not_read_to_its_end(registry: Server, tmp_path: Path) -> None:
    registry.token = b'{"token": "' + b"x" * 3_000_000 + b'"}'
    with pytest.raises(FlagbenchError) as caught:
        RegistryPlace(f"{registry.host}/team/x").has_blob(digest_of(LAYER))
    assert caught.value.code is ExitCode.ENGINE


def test_an_account_in_another_alphabet(registry: Server, tmp_path: Path) -> None:
    auth = base64.b64encode("ann:p\u00e4ss\u4e2d".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    assert RegistryPlace(f"{registry.host}/team/x").has_blob(digest_of(LAYER))
    assert registry.tokens[0][0] == f"Basic {auth}"
