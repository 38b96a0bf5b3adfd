"""Writes a node's bundle: the raw evidence of its ranks in one tar.gz, with SHA256SUMS of its files.

The evidence is the files of the spool, the folder to which ranks write facts and steps during a run. Equal evidence
makes equal bytes: times, owners and order are fixed. Files are copied piece by piece, and without credentials.
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
MANIFEST = "MANIFEST.json"
SUMS = "SHA256SUMS"
RANK_FILE_KINDS = ("facts", "steps")
"""The kinds of files that each rank has in the spool."""
NODE_FILES = ("plan.json", "telemetry.jsonl")
"""Files of a node in the spool: from its parent process and the sampler."""
COMPRESSION_LEVEL = 6
"""zlib's default, written out because equal evidence must make equal bytes."""
_LINE_BYTES = 2**24
"""A longer line is searched for credentials in pieces, which bounds the memory needed."""
_MAX_CACHED_LENGTH = 256
"""The most characters of a text whose search for credentials is cached: host names and keys, but not tracebacks."""
_CACHED_TEXTS = 4096
"""The number of texts in a cache, at most about 2 MB."""


class Origin(NamedTuple):
    """The run and node that a bundle belongs to."""

    record_id: str
    run_id: str
    node: int
    config: dict[str, Any]
    environment: Mapping[str, str]
    """Environment variables of the ranks. The bundle contains those that may be published."""


def write(folder: str, spool_folder: str, ranks: Sequence[int], origin: Origin) -> Bundle:
    """Write the bundle of the ranks of a node to a file in `folder`. Raises OSError."""
    staging = os.path.join(folder, "files")
    os.mkdir(staging)
    secrets = environment.secret_values(os.environ)
    _write_documents(staging, origin, secrets)
    _copy_spool(staging, spool_folder, ranks, Cleaner(secrets))
    names = sorted(os.listdir(staging))
    sums = [f"{files.sum_of(os.path.join(staging, name))}  {name}\n" for name in names]
    _write_file(staging, SUMS, "".join(sums).encode("utf-8"))
    path = os.path.join(folder, f"node-{origin.node}.tar.gz")
    _write_archive(path, staging, [*names, SUMS])
    return Bundle(path, origin.node, files.sum_of(path), os.path.getsize(path))


def _write_archive(path: str, folder: str, names: Sequence[str]) -> None:
    """Write the files of a folder to a tar.gz that depends only on their names and contents."""
    with open(path, "wb") as file:
        # mtime and name would be in the header of the gzip stream.
        with gzip.GzipFile(
            filename="", mode="wb", compresslevel=COMPRESSION_LEVEL, fileobj=file, mtime=0
        ) as compressed:
            with tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name in names:
                    info = tarfile.TarInfo(name)  # times and owners are 0
                    info.size = os.path.getsize(os.path.join(folder, name))
                    with open(os.path.join(folder, name), "rb") as content:
                        archive.addfile(info, content)
        file.flush()
        os.fsync(file.fileno())


def _write_documents(staging: str, origin: Origin, secrets: Sequence[str]) -> None:
    """Write the JSON files of a bundle that describe the run: where it is from, its configuration and environment."""
    manifest = {"schema": BUNDLE_SCHEMA, "record_id": origin.record_id, "run_id": origin.run_id, "node": origin.node}
    variables = environment.variables_for_bundle(origin.environment, lambda value: redact(value, secrets))
    documents = {MANIFEST: manifest, "config.json": origin.config, "environment.json": variables}
    for name, document in documents.items():
        text = json.dumps(document, indent=1, sort_keys=True)
        _write_file(staging, name, text.encode("utf-8") + b"\n")


def _copy_spool(staging: str, spool_folder: str, ranks: Sequence[int], cleaner: Cleaner) -> None:
    """Copy the files of the spool that exist, without credentials."""
    paths = [os.path.join(spool_folder, name) for name in NODE_FILES]
    for rank in ranks:
        paths += [spool.path_of(spool_folder, rank, kind) for kind in RANK_FILE_KINDS]
    for path in paths:
        if not os.path.isfile(path):
            continue
        copy = os.path.join(staging, os.path.basename(path))
        if path.endswith(".steps"):  # numbers only
            used = spool.used_bytes(path)  # the rest of the file is space that was reserved for more steps
            shutil.copyfile(path, copy)
            os.truncate(copy, used)
            continue
        with open(path, "rb") as source, open(copy, "wb") as target:
            for line in iter(lambda: source.readline(_LINE_BYTES), b""):
                target.write(cleaner.clean_line(line))


def _write_file(folder: str, name: str, content: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)


class Cleaner:
    """Removes credentials from JSON lines. Short texts repeat in most lines, so their results are cached."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """`secrets`: texts to remove in addition to everything that looks like a credential."""
        self._secrets = secrets
        self._redact_cached = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._redact)
        self._is_secret_cached = functools.lru_cache(maxsize=_CACHED_TEXTS)(is_secret)
        self._line_changed = False
        """Whether a credential was found in the line that is being cleaned."""

    def clean_line(self, line: bytes) -> bytes:
        """Return a line without credentials. A line that has none is returned byte for byte."""
        text = line.decode("utf-8", "replace")
        self._line_changed = False
        try:
            document = self._clean_value(json.loads(text))
        except (ValueError, RecursionError):  # a rank was killed while it wrote the line
            clean_text = self._redact(text)
            if clean_text == text:
                return line
            return clean_text.encode("utf-8")
        if not self._line_changed:
            return line
        clean_line = json.dumps(document).encode("utf-8")
        if line.endswith(b"\n"):
            clean_line += b"\n"
        return clean_line

    def _clean_value(self, value: Any) -> Any:
        """Return a JSON value without credentials, and note whether it changed."""
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, list):
            return [self._clean_value(item) for item in value]
        if isinstance(value, dict):
            return {self._clean_text(name): self._clean_field(name, item) for name, item in value.items()}
        return value

    def _clean_text(self, text: str) -> str:
        redact_text = self._redact
        if len(text) <= _MAX_CACHED_LENGTH:
            redact_text = self._redact_cached
        clean_text = redact_text(text)
        if clean_text != text:
            self._line_changed = True
        return clean_text

    def _clean_field(self, name: str, value: Any) -> Any:
        """Return the value of an object's field without credentials: the name may tell that the text is one."""
        if isinstance(value, str) and self._is_secret(name, value):
            self._line_changed = True
            return REDACTED
        return self._clean_value(value)

    def _is_secret(self, name: str, text: str) -> bool:
        if len(text) <= _MAX_CACHED_LENGTH:
            return self._is_secret_cached(name, text)
        return is_secret(name, text)

    def _redact(self, text: str) -> str:
        return redact(text, self._secrets)
