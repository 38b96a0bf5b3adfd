"""The signature of a bundle, by a program that stands for minisign and cosign."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.reproduce.manifest import MANIFEST
from flagbench.reproduce.signature import check_signature, check_signer, sign
from reproductions import Files, flip, is_damaged, unpacked, written
from unit.host.conftest import Flagbench

SIGNER = """#!/usr/bin/env python3
import hashlib, pathlib, sys
words = sys.argv[1:]
def value(*names):
    return next((words[i + 1] for i, word in enumerate(words) if word in names), "")
if "--help" in words:
    print("--tlog-upload --insecure-ignore-tlog")
    sys.exit()
key = value("-s", "-p", "-P", "--key")
text = pathlib.Path(key).read_text() if pathlib.Path(key).is_file() else key
file = value("-m") or words[-1]
total = hashlib.sha256(text.encode() + pathlib.Path(file).read_bytes()).hexdigest()
target = pathlib.Path(value("-x", "--bundle"))
log = {"sign-blob": "--tlog-upload=false", "verify-blob": "--insecure-ignore-tlog=true"}.get(words[0])
if log is not None and log not in words:
    sys.exit("would be published")
if words[0] in ("-S", "sign-blob"):
    target.write_text(total)
elif target.read_text() != total:
    sys.exit("wrong signature")
"""


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for minisign and cosign, with one key for signing and checking; returns its file."""
    for name in ("minisign", "cosign"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(SIGNER)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "key").write_text("secret")
    return tmp_path / "key"


@pytest.mark.parametrize("tool", ["minisign", "cosign"])
def test_a_signature_is_checked_with_the_key(
    tmp_path: Path, files: Files, flagbench: Flagbench, signer: Path, tool: Any
) -> None:
    target, other = tmp_path / "b.tar.gz", tmp_path / "other"
    other.write_text("other")
    written(target, files, sign=lambda manifest: sign(tool, str(signer), manifest))
    states = {}
    for key in (None, signer, other):
        ended = flagbench("bundle verify --json", str(target), *([] if key is None else ["--key", str(key)]))
        states[key] = (ended.code, json.loads(ended.out)["signature"]["state"])
    assert states == {
        None: (0, "signature not checked"),
        signer: (0, "signature valid"),
        other: (ExitCode.INVALID, "signature INVALID"),
    }
    found = tmp_path / "unpacked"
    unpacked(target, found)
    flip(next(found.glob(f"{MANIFEST}.*")), 0)
    assert is_damaged(found)


def test_a_bundle_without_the_signature_that_is_asked_for_is_not_valid(
    file: Path, flagbench: Flagbench, signer: Path
) -> None:
    assert flagbench("bundle verify", str(file)).code == ExitCode.OK
    ended = flagbench("bundle verify --json", str(file), "--key", str(signer))
    answer = json.loads(ended.out)
    assert (ended.code, answer["ok"], answer["signature"]["state"]) == (ExitCode.INVALID, False, "not signed")


def test_cosign_takes_the_url_of_a_key_and_minisign_does_not(
    tmp_path: Path, files: Files, flagbench: Flagbench, signer: Path
) -> None:
    target, key = tmp_path / "b.tar.gz", "awskms:///alias/ours"
    check_signer("cosign", key)
    with pytest.raises(FlagbenchError):
        check_signer("minisign", key)
    written(target, files, sign=lambda manifest: sign("cosign", key, manifest))
    assert flagbench("bundle verify", str(target), "--key", key).code == ExitCode.OK
    assert flagbench("bundle verify", str(target), "--key", "awskms:///alias/theirs").code == ExitCode.INVALID


def test_signing_fails_without_the_tool_or_its_success(
    tmp_path: Path, files: Files, signer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "minisign").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(FlagbenchError) as error:
        written(tmp_path / "b.tar.gz", files, sign=lambda manifest: sign("minisign", str(signer), manifest))
    assert (error.value.code, (tmp_path / "b.tar.gz").exists()) == (ExitCode.NOT_STORED, False)
    written(tmp_path / "folder", files, sign=lambda manifest: sign("cosign", str(signer), manifest))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlagbenchError) as error:
        check_signature(tmp_path / "folder", str(signer))
    assert error.value.code == ExitCode.USAGE
