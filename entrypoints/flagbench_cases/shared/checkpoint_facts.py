"""The content of a checkpoint's `checkpoint.json`, and the choice of the checkpoint to resume from.

Used by the parent process before any rank is started, so nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import is_plain, open_file

NAME = re.compile(r"step-(\d{8,})")
TENSORS, GENERATORS, FACTS = "tensors.safetensors", "generators.safetensors", "checkpoint.json"
SCHEMAS = ("checkpoint/v1", "checkpoint/v2")
"""v1 has the tensors of rank 0. v2 has those of every rank that has its own, and the layout."""
REMEDY = "resume from another checkpoint"
NOT_SHARED = "resume from another checkpoint; on several nodes, give all of them the same shared folder"
# Settings that may differ between a checkpoint's run and the run that resumes from it.
FREE = ("window_steps", "warmup_steps", "checkpoint_every_steps")
CONTENTS = "contents"
MAX_STEPS = 10**12
"""No run is longer: also the limit of --steps."""


def tensors_of(rank: int) -> str:
    """The name of a rank's file in a checkpoint to which several ranks wrote."""
    return f"tensors-{rank:05d}.safetensors"


def identity(config: dict[str, Any], contents: dict[str, Any]) -> dict[str, Any]:
    """The settings that a checkpoint and the run that resumes from it must have in common, by dotted name.

    `contents`: facts about the workload's files, such as checksums of data and weights.
    """
    # Evaluation does not affect training, and a preset is represented by its sizes.
    kept = {key: value for key, value in config.items() if key not in ("nodes", "gpus", "preset", "eval")}
    kept["train"] = {key: value for key, value in config["train"].items() if key not in FREE}
    kept["devices"] = config["nodes"] * config["gpus"]
    kept[CONTENTS] = contents
    return dict(flat(kept))


def flat(section: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The values of nested sections with their dotted names."""
    settings: list[tuple[str, Any]] = []
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            settings += flat(value, name + ".")
        else:
            settings.append((name, value))
    return settings


def find(folder: str, config: dict[str, Any]) -> str:
    """The checkpoint in `folder`, or the newest of those below it, whose identity must match `config`.

    `contents` are not compared here: they are known only when data and weights are loaded. Raises DataError if there
    is no checkpoint or it is damaged, UsageError if it belongs to different training.
    """
    if not os.path.exists(os.path.join(folder, FACTS)):
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise DataError(f"{folder} has no checkpoint", "set --resume to the checkpoints/RUN folder of a run")
        folder = checkpoints[-1]
    content = read(folder)
    comparable = {key: value for key, value in content["identity"].items() if not key.startswith(CONTENTS + ".")}
    check_identity(comparable, identity(config, {}))
    _check_sizes(folder, content["files"])
    return folder


def _check_sizes(folder: str, files: dict[str, dict[str, Any]]) -> None:
    """Raise DataError if a file is missing or has another size. The ranks verify checksums."""
    for name, listed in sorted(files.items()):
        path = os.path.join(folder, name)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})", NOT_SHARED) from None
        if size != listed["bytes"]:
            raise DataError(f"{path} is damaged: it has {size} bytes, not {listed['bytes']}", REMEDY)


def list_checkpoints(folder: str) -> list[str]:
    """The checkpoints in a folder in the order they were written, not by step: a run may resume from an earlier
    one."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names if NAME.fullmatch(name)]
    return sorted(paths, key=lambda path: (_written_at(path), path))


def _written_at(path: str) -> int:
    try:
        return os.stat(os.path.join(path, FACTS)).st_mtime_ns
    except OSError:
        return 0


def to_bytes(content: dict[str, Any]) -> bytes:
    """`content` with its checksum, as the bytes of a `checkpoint.json`."""
    return json.dumps(dict(content, sha256=_sum(content)), sort_keys=True).encode("utf-8")


def _sum(content: dict[str, Any]) -> str:
    """The checksum of the content except `sha256`. NaN is allowed here."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def read(folder: str) -> dict[str, Any]:
    """The content of a checkpoint's `checkpoint.json`. Raises DataError if it is damaged."""
    path = os.path.join(folder, FACTS)
    try:
        with open_file(path, encoding="utf-8") as file:
            content = json.load(file)
        is_checkpoint = _is_checkpoint(content)
        is_whole = content.get("sha256") == _sum(content)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error})", REMEDY) from error
    if not is_checkpoint:
        raise DataError(f"{path} is not a {' or '.join(SCHEMAS)}", REMEDY)
    if not is_whole:
        raise DataError(f"{path} is damaged: its checksum differs", REMEDY)
    return content


def _is_checkpoint(content: dict[str, Any]) -> bool:
    """Whether the content has the fields of its schema. Raises KeyError or TypeError where one is missing."""
    if content["schema"] not in SCHEMAS:
        return False
    if type(content["step"]) is not int or not 0 <= content["step"] < MAX_STEPS:
        return False
    if not isinstance(content["identity"], dict) or not isinstance(content["facts"], dict):
        return False
    tensors = TENSORS
    if content["schema"] == SCHEMAS[1]:
        tensors = tensors_of(0)
    files = content["files"]
    if not isinstance(files, dict) or GENERATORS not in files or tensors not in files:
        return False
    for name, listed in files.items():
        if not is_plain(name):
            return False
        if not isinstance(listed["sha256"], str) or not isinstance(listed["bytes"], int):
            return False
    return True


def check_identity(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise UsageError naming the differences between a checkpoint's identity and that of the run."""
    differences = []
    for name in sorted({*saved, *wanted}):
        if saved.get(name) != wanted.get(name):
            differences.append(f"{name} is {saved.get(name)}, not {wanted.get(name)}")
    if differences:
        first = "; ".join(differences[:5])
        raise UsageError(
            f"the checkpoint belongs to different training: {first}",
            "use the same options as the run that wrote it",
        )
