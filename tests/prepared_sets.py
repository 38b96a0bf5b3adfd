"""Prepared folders of a few bytes or a few parts, put into a bucket and fetched as tests do it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flagbench_cases.prepare import bucket, job, prepared_folder
from flagbench_cases.prepare.progress import Progress
from running import ENTRYPOINTS

CASE = "glm"
SMALL = {"one.bin": b"some bytes", "two.bin": b"", "three.bin": bytes(7_000)}


def large() -> bytes:
    """Bytes that a transfer needs three parts for."""
    return random.Random(1).randbytes(17 * 2**20)


def prepare(out: Path, files: dict[str, bytes], kind: str = "data", case: str = CASE) -> Path:
    """A prepared folder with these files below OUT; returns OUT."""
    with prepared_folder.writing(str(out), case, kind, "free for all") as writer:
        for name, content in files.items():
            Path(writer.path(name)).write_bytes(content)
        writer.format("test/v1")
    return out


def put(out: Path, url: str, *, force: bool = False, case: str = CASE) -> dict[str, Any]:
    """Upload OUT, in this process."""
    results: dict[str, Any] = {}
    plan = {"case": case, "out": str(out), "to": url, "force": force}
    job.prepare({**plan, **dict.fromkeys(("data", "weights", "vocabulary"))}, Progress(), results)
    return results


def get(url: str, *kinds: str, optional: Sequence[str] = ()) -> dict[str, Any]:
    """Fetch the data at an address, or these kinds, in this process."""
    results: dict[str, Any] = {}
    sources = {kind: {"url": url, "optional": kind in optional} for kind in (*(kinds or ("data",)), *optional)}
    bucket.fetch({"case": CASE, "sources": sources, "survey": False}, Progress(), results)
    return results


def contents(folder: str) -> dict[str, bytes]:
    """The files of a prepared folder by name, but for its index."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != "prepared.json"}


def command(*words: str, **options: Any) -> subprocess.Popen[str]:
    """`python -m flagbench_cases ...`, started."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "flagbench_cases", *words],
        env=dict(os.environ, PYTHONPATH=ENTRYPOINTS),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        **options,
    )


def call(*words: str) -> tuple[int, Any, str]:
    """The same to its end: exit code, what it printed as JSON, and what it said."""
    process = command(*words)
    printed, said = process.communicate(timeout=120)
    return process.returncode, json.loads(printed) if printed else None, said
