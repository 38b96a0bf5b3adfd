"""A node's bundle: the raw evidence of its ranks in one deterministic tar.gz, with SHA256SUMS of what is in it.

Equal evidence makes equal bytes: times, owners and order are fixed. It is written in little memory.
"""

import gzip
import json
import os
import shutil
import tarfile
from typing import Any, Dict, Mapping, NamedTuple, Sequence

from flagbench_cases.record import surroundings
from flagbench_cases.record.stores import Bundle
from flagbench_cases.shared import files, spool

SCHEMA = "bundle/v1"
MANIFEST, SUMS = "MANIFEST.json", "SHA256SUMS"
KINDS = ("exit", "facts", "steps")
LAUNCHER, PLAN, TELEMETRY = "agent.json", "plan.json", "telemetry.jsonl"
_LINE_BYTES = 2**24
"""A longer line is searched for credentials in pieces."""


class Origin(NamedTuple):
    """What a bundle is of."""

    record_id: str
    run_id: str
    node: int
    config: Dict[str, Any]
    environment: Mapping[str, str]
    """Of the ranks; of it the bundle has what `surroundings` allows."""


def write(folder: str, spool_folder: str, ranks: Sequence[int], origin: Origin) -> Bundle:
    """Write the bundle of the ranks of a node to a file in `folder`. Raises OSError."""
    staged = os.path.join(folder, "files")
    os.mkdir(staged)
    _stage(staged, spool_folder, ranks, origin)
    names = sorted(os.listdir(staged))
    sums = ["%s  %s\n" % (files.sum_of(os.path.join(staged, name)), name) for name in names]
    _write(staged, SUMS, "".join(sums).encode("utf-8"))
    path = os.path.join(folder, "node-%d.tar.gz" % origin.node)
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
    known = surroundings.secrets(os.environ)
    cleaner = surroundings.Cleaner(known)
    of = {"schema": SCHEMA, "record_id": origin.record_id, "run_id": origin.run_id, "node": origin.node}
    environment = surroundings.allowed(origin.environment, known)
    for name, value in ((MANIFEST, of), ("config.json", origin.config), ("environment.json", environment)):
        _write(staged, name, json.dumps(value, indent=1, sort_keys=True).encode("utf-8") + b"\n")
    paths = [os.path.join(spool_folder, name) for name in (LAUNCHER, PLAN, TELEMETRY)]
    paths += [spool.path_of(spool_folder, rank, kind) for rank in ranks for kind in KINDS]
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
