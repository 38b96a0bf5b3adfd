"""Layers and manifests put into a registry: mounted or sent, over TLS, again where that is put off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from requests import Response

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import parse_reference
from flagbench.oci.model import OCI_MANIFEST, digest_of
from flagbench.oci.registry import RegistryPlace
from flagbench.oci.registry_client import RegistryClient
from places import quiet
from token_registries import DIFF_ID, Server, blob


def test_a_layer_is_mounted_from_a_repository_of_the_same_registry(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    origins = ("r.example/team/y", f"{registry.host}/team/y")
    assert place.put_blob(blob(tmp_path, *origins), lambda count: None) == "copied"
    (mount,) = {each for each in registry.asked if "mount=" in each}
    assert "from=team%2Fy" in mount
    assert registry.tokens[-1][1] == ["repository:team/x:pull,push", "repository:team/y:pull"]


@pytest.mark.parametrize("answer", [202, 401, 403, 400, 404, 405, 0])
def test_a_registry_that_mounts_nothing_gets_the_bytes(answer: int, registry: Server, tmp_path: Path) -> None:
    registry.mounts = answer
    place = RegistryPlace(f"{registry.host}/team/x")
    assert place.put_blob(blob(tmp_path, f"{registry.host}/team/y"), lambda count: None) == "uploaded"
    assert registry.blobs[digest_of(b"content")] == b"content"
    # The upload that it began instead is ended.
    assert any(each.startswith("DELETE ") for each in registry.asked) is (answer == 202)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/x/session?state=1", "https://r.example:5000/v2/x/session?state=1"),
        ("http://r.example:5000/v2/x/session", "https://r.example:5000/v2/x/session"),
        ("http://r.example/v2/x/session", "https://r.example:5000/v2/x/session"),
        ("https://storage.example/a", "https://storage.example/a"),
        ("http://storage.example/a", None),
        ("http://[x", None),
        ("https://r.example:port/x", None),
    ],
)
def test_a_layer_is_never_sent_without_tls_to_a_registry_that_has_it(location: str, expected: str | None) -> None:
    client = RegistryClient(parse_reference("r.example:5000/x"))
    answer = Response()
    answer.url, answer.headers["Location"] = f"{client.base}/blobs/uploads/", location
    if expected is not None:
        assert client.location(answer) == expected
        return
    with pytest.raises(FlagbenchError) as caught:
        client.location(answer)
    assert caught.value.code is ExitCode.ENGINE


@pytest.mark.parametrize("status", [404, 408, 429, 500, 503])
def test_an_upload_that_the_registry_puts_off_is_repeated(
    status: int, registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("flagbench.oci.registry._pause", lambda seconds, show: pauses.append(seconds))
    registry.faults = [("PUT /v2/team/x/blobs/", status, {"Retry-After": "7"})]
    sent: list[int] = []
    assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), sent.append) == "uploaded"
    assert sum(sent) == 7
    assert 7.0 in pauses


def test_an_upload_that_was_not_confirmed_in_time_is_looked_for_first(
    registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(b"content")

    def wait(seconds: float, show: Any) -> None:
        if seconds == 10.0:  # the registry is done at last
            registry.blobs[digest] = b"content"

    monkeypatch.setattr("flagbench.oci.registry._pause", wait)
    registry.faults = [("PUT /v2/team/x/blobs/", 504, {})]
    assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet) == "uploaded"
    assert sum(each.startswith("PUT ") for each in registry.asked) == 0


def test_a_manifest_is_put_again(registry: Server) -> None:
    registry.faults = [
        ("PUT /v2/team/x/manifests/", 503, {}),
        ("PUT /v2/team/x/manifests/1", 429, {"Retry-After": "0"}),
    ]
    RegistryPlace(f"{registry.host}/team/x").put_manifest(b"{}", OCI_MANIFEST, ("1",))
    assert registry.manifests["1"] == b"{}"


def test_a_manifest_whose_digest_is_denied_is_put_again(registry: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry reads half a link while another push of the manifest writes it."""
    monkeypatch.setattr("flagbench.oci.registry._pause", lambda seconds: None)
    place, fault = RegistryPlace(f"{registry.host}/team/x"), ("PUT /v2/team/x/manifests/", 400, {})
    registry.faults = [fault] * 4
    place.put_manifest(b"{}", OCI_MANIFEST, ("1",))
    assert registry.manifests["1"] == registry.manifests[digest_of(b"{}")] == b"{}"
    registry.faults = [fault] * 5
    with pytest.raises(FlagbenchError) as caught:
        place.put_manifest(b"{}", OCI_MANIFEST, ("1",))
    assert caught.value.code is ExitCode.ENGINE


@pytest.mark.parametrize(
    "name", ["https://r.example/x", "r.example/x:1", "r.example/X", f"r.example/x@{DIFF_ID}", ""]
)
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        RegistryPlace(name)
    assert caught.value.code is ExitCode.USAGE
