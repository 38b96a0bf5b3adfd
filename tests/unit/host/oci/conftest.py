"""What the tests of registries share."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from token_registries import Server, serving


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The registry, with docker logged in."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flagbench.oci.registry._PAUSE", 0.0)
    with serving() as server:
        auth = base64.b64encode(b"ann:s3cret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
        yield server
