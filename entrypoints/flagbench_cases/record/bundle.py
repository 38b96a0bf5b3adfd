"""A node's bundle: the raw evidence of its ranks in one deterministic tar.gz, with SHA256SUMS of its files.

Equal evidence makes equal bytes: times, owners and order are fixed. It is written in little memory.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import tarfile
from typing import Any, Mapping, NamedTuple, Sequence

from flagbench_cases.record.stores import Bundle
from flagbench_cases.shared import files, spool
from flagbench_cases.shared.redaction import redact
from flagbench_core import environment
from flagbench_core.redaction import REDACTED, is_secret

BUNDLE_SCHEMA = "bundle/v1"
MANIFEST, SUMS = "MANIFEST.json", "SHA256SUMS"
PART_KINDS = ("exit", "facts", "steps")
LAUNCHER, PLAN, TELEMETRY = "agent.json", "plan.json", "telemetry.jsonl"
_LINE_BYTES = 2**24
"""A longer line is searched for credentials in pieces."""
_SHORT = 256


class Origin(NamedTuple):
    """The run and node that a bundle belongs to."""

    record_id: str
    run_id: str
    node: int
    config: dict[str, Any]
    environment: Mapping[str, str]
    """Of the ranks; the bundle has those that may be published."""


def write(folder: str, spool_folder: str, ranks: Sequence[int], origin: Origin) -> Bundle:
    """Write the bundle of the ranks of a node to a file in `folder`. Raises OSError."""
    staged = os.path.join(folder, "files")
    os.mkdir(staged)
    _stage(staged, spool_folder, ranks, origin)
    names = sorted(os.listdir(staged))
    sums = [f"{files.sum_of(os.path.join(staged, name))}  {name}\n" for name in names]
    _write(staged, SUMS, "".join(sums).encode("utf-8"))
    path = os.path.join(folder, f"node-{origin.node}.tar.gz")
    with open(path, "wb") as file:
        # mtime and name would be in the header of the gzip stream.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name in [*names, SUMS]:
                    info = tarfile.TarInfo(name)  # times and owners are 0
                    info.size = os.path.getsize(os.path.join(staged, name))
                    with open(os.path.join(staged, name), "rb") as content:
                        archive.addfile(info, content)
        file.flush()
        os.fsync(file.fileno())
    return Bundle(path, origin.node, files.sum_of(path), os.path.getsize(path))


def _stage(staged: str, spool_folder: str, ranks: Sequence[int], origin: Origin) -> None:
    """Write every file of the bundle but SHA256SUMS to a folder, without credentials."""
    secrets = environment.secret_values(os.environ)
    cleaner = Cleaner(secrets)
    manifest = {"schema": BUNDLE_SCHEMA, "record_id": origin.record_id, "run_id": origin.run_id, "node": origin.node}
    variables = environment.variables_for_bundle(origin.environment, lambda value: redact(value, secrets))
    documents = {MANIFEST: manifest, "config.json": origin.config, "environment.json": variables}
    for name, document in documents.items():
        _write(staged, name, json.dumps(document, indent=1, sort_keys=True).encode("utf-8") + b"\n")
    paths = [os.path.join(spool_folder, name) for name in (LAUNCHER, PLAN, TELEMETRY)]
    for rank in ranks:
        paths += [spool.path_of(spool_folder, rank, kind) for kind in PART_KINDS]
    for path in paths:
        if not os.path.isfile(path):
            continue
        copy = os.path.join(staged, os.path.basename(path))
        if path.endswith(".steps"):
            used = spool.used_bytes(path)  # the rest of the file is space that was reserved for more steps
            shutil.copyfile(path, copy)
            os.truncate(copy, used)
            continue
        with open(path, "rb") as source, open(copy, "wb") as target:
            for line in iter(lambda: source.readline(_LINE_BYTES), b""):
                target.write(cleaner.line(line))


def _write(folder: str, name: str, content: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)


class Cleaner:
    """Removes credentials from JSON lines. Short texts, which repeat in most lines, are searched once."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """`secrets`: texts to remove in addition to everything that looks like a credential."""
        self._secrets = secrets
        self._short = functools.lru_cache(maxsize=4096)(self._text)
        self._is_secret = functools.lru_cache(maxsize=4096)(is_secret)
        self._changed = False

    def line(self, line: bytes) -> bytes:
        """A line without credentials; unchanged, byte for byte, where there are none."""
        text = line.decode("utf-8", "replace")
        self._changed = False
        try:
            document = self._value(json.loads(text))
        except (ValueError, RecursionError):  # a rank was killed while it wrote it
            clean = self._text(text)
            if clean == text:
                return line
            return clean.encode("utf-8")
        if not self._changed:
            return line
        clean_line = json.dumps(document).encode("utf-8")
        if line.endswith(b"\n"):
            clean_line += b"\n"
        return clean_line

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {self._value(key): self._named(key, item) for key, item in value.items()}
        return value

    def _string(self, text: str) -> str:
        clean = self._clean(text)
        if clean != text:
            self._changed = True
        return clean

    def _clean(self, text: str) -> str:
        if len(text) <= _SHORT:
            return self._short(text)
        return self._text(text)

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            if self._names_secret(name, value):
                self._changed = True
                return REDACTED
        elif not isinstance(value, (list, dict)):
            return value
        return self._value(value)

    def _names_secret(self, name: str, text: str) -> bool:
        if len(text) <= _SHORT:
            return self._is_secret(name, text)
        return is_secret(name, text)

    def _text(self, text: str) -> str:
        return redact(text, self._secrets)
