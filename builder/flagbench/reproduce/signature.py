"""Detached signatures of a bundle's manifest, made and checked by minisign or cosign where they are installed.

Nothing is uploaded: cosign is told to leave its public transparency log alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.reproduce.manifest import MANIFEST, SIGNATURES, signature_of
from flagbench.terminal import brief

Tool = Literal["minisign", "cosign"]
SECONDS = 60.0
"""How long checking a signature may take. Making one may wait for a password."""
_URL = re.compile("[a-z0-9+.-]+:")
"""Such as `awskms:///alias/NAME` and `pkcs11:token=NAME`."""
_MINISIGN_KEY = re.compile(r"RW[0-9A-Za-z+/]{54}")


def check_signer(tool: Tool, key: str | None) -> None:
    """Raise FlagbenchError (usage) where a bundle could not be signed: that should not cost a run.

    `key`: a file, or for cosign the URL of a key, such as `awskms:///alias/NAME`.
    """
    _found(tool)
    if key is None and tool == "cosign":
        raise FlagbenchError(
            "--sign cosign needs a key: without one it would sign in public, with your name",
            remedy="make one with `cosign generate-key-pair`, and give --sign-key cosign.key",
        )
    if key is not None:
        _usable(key, tool, "--sign-key", "secret")


def sign(tool: Tool, key: str | None, manifest: Path) -> Path:
    """Put a signature beside the manifest; returns its file. The tool may ask for a password on the terminal.

    Raises FlagbenchError (not stored) where the tool fails.
    """
    target = manifest.with_name(SIGNATURES[tool])
    program = _found(tool)
    if tool == "minisign":
        command = [program, "-S", *([] if key is None else ["-s", key]), "-m", str(manifest), "-x", str(target)]
    else:
        command = [program, "sign-blob", "--yes", "--key", str(key), "--bundle", str(target)]
        command += [*_without_log(program, "sign-blob"), str(manifest)]
    # What it prints belongs on stderr: stdout is for the verdict.
    done = subprocess.run(command, stdout=2, check=False)
    if done.returncode or not target.is_file():
        raise FlagbenchError(
            f"{tool} did not sign the bundle: it ended with {done.returncode}",
            remedy="see its message above; without --sign the bundle is written unsigned",
            code=ExitCode.NOT_STORED,
        )
    return target


@dataclass(frozen=True)
class SignatureCheck:
    """What is known of a bundle's signature."""

    state: Literal["not signed", "signature not checked", "signature valid", "signature INVALID"]
    detail: str


def check_signature(folder: Path, key: str | None) -> SignatureCheck:
    """Check the signature of an unpacked bundle with a public key: a file, a minisign key, or a URL for cosign.

    Raises FlagbenchError (usage) where a key is given and there is no such tool or file.
    """
    found = signature_of(folder)
    if found is None:
        return SignatureCheck("not signed", "anyone could have written it: compare the sha256 of its manifest")
    tool, file = found
    if key is None:
        return SignatureCheck("signature not checked", f"by {tool}: give the public key with --key")
    program, manifest = _found(tool), folder / MANIFEST
    if tool == "minisign":
        named = ["-P", key] if _MINISIGN_KEY.fullmatch(key) else ["-p", _usable(key, tool, "--key", "public")]
        command = [program, "-V", "-q", *named, "-m", str(manifest), "-x", str(file)]
    else:
        command = [program, "verify-blob", "--key", _usable(key, tool, "--key", "public"), "--bundle", str(file)]
        command += [*_without_log(program, "verify-blob"), str(manifest)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return SignatureCheck("signature INVALID", f"{tool} did not answer within {SECONDS:.0f} s")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        return SignatureCheck("signature INVALID", f"{tool}: {brief(said[-1])}")
    return SignatureCheck("signature valid", f"{tool}, {key}")


def _found(tool: str) -> str:
    program = shutil.which(tool)
    if program is None:
        raise FlagbenchError(f"{tool} is not installed", remedy=f"install {tool}, or leave out the option for it")
    return program


def _usable(key: str, tool: str, option: str, which: str) -> str:
    """The key as the tool takes it. Raises FlagbenchError (usage) unless it is a file, or for cosign a URL."""
    if not (tool == "cosign" and _URL.match(key)) and not Path(key).is_file():
        raise FlagbenchError(f"{option} {brief(key)!r} is not a file", remedy=f"name the file of the {which} key")
    return key


def _without_log(program: str, command: str) -> list[str]:
    """What keeps cosign off its public log. The options differ between its versions, so it is asked."""
    try:
        asked = subprocess.run(
            [program, command, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return []
    known = set(re.findall(r"--[a-z-]+", asked.stdout + asked.stderr))
    wanted = {
        "sign-blob": ("--use-signing-config=false", "--new-bundle-format=false", "--tlog-upload=false"),
        "verify-blob": ("--new-bundle-format=false", "--insecure-ignore-tlog=true"),
    }
    return [option for option in wanted[command] if option.partition("=")[0] in known]
