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

FOLDER_NAME = re.compile(r"step-(\d{8,})")
"""The name of a checkpoint's folder, with the number of its step."""
TENSORS = "tensors.safetensors"
"""The file with the parameters and the optimizer's state, if all ranks have the same."""
GENERATORS = "generators.safetensors"
"""The file with the states of the random generators of all ranks."""
FACTS_FILE = "checkpoint.json"
"""The file with facts about the training and about the other files. It is written last."""
WHOLE_SCHEMA = "checkpoint/v1"
"""The schema of a checkpoint with the tensors of rank 0, which all ranks have."""
SPLIT_SCHEMA = "checkpoint/v2"
"""The schema of a checkpoint with the layout, and the tensors of every rank whose tensors differ."""
SCHEMAS = (WHOLE_SCHEMA, SPLIT_SCHEMA)
REMEDY = "resume from another checkpoint"
NOT_SHARED = "resume from another checkpoint; on several nodes, give all of them the same shared folder"
MAY_DIFFER = ("window_steps", "warmup_steps", "checkpoint_every_steps")
"""Settings of the section `train` that may differ between the run that wrote a checkpoint and one that resumes."""
CONTENTS = "contents"
"""The section of an identity with facts about the workload's files, such as checksums of data and weights."""
SHOWN_DIFFERENCES = 5
"""The most differences between two identities that a message lists."""
MAX_STEPS = 10**12
"""No run is longer: also the limit of --steps."""


def tensors_of(rank: int) -> str:
    """The name of a rank's file in a checkpoint to which several ranks wrote."""
    return f"tensors-{rank:05d}.safetensors"


def identity(config: dict[str, Any], contents: dict[str, Any]) -> dict[str, Any]:
    """The settings that a checkpoint and the run that resumes from it must have in common, by dotted name.

    `contents`: see CONTENTS.
    """
    # Evaluation does not affect training, a preset is represented by its sizes, and only the product of nodes and
    # devices per node matters.
    settings = {key: value for key, value in config.items() if key not in ("nodes", "gpus", "preset", "eval")}
    settings["train"] = {key: value for key, value in config["train"].items() if key not in MAY_DIFFER}
    settings["devices"] = config["nodes"] * config["gpus"]
    settings[CONTENTS] = contents
    return dict(flat(settings))


def flat(section: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The values of nested sections with their dotted names, such as `model.layers`."""
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

    The newest is the one that was written last, even if others have more steps: see `list_checkpoints`. The section
    `contents` of an identity is not compared here: it is known only when data and weights are loaded.

    Raises DataError if there is no checkpoint or it is damaged, UsageError if it belongs to different training.
    """
    if not os.path.exists(os.path.join(folder, FACTS_FILE)):
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise DataError(f"{folder} has no checkpoint", "set --resume to the checkpoints/RUN folder of a run")
        folder = checkpoints[-1]
    content = read(folder)
    saved = {key: value for key, value in content["identity"].items() if not key.startswith(CONTENTS + ".")}
    check_identity(saved, identity(config, {}))
    _check_sizes(folder, content["files"])
    return folder


def _check_sizes(folder: str, files: dict[str, dict[str, Any]]) -> None:
    """Raise DataError if a file of a checkpoint is missing or has another size than listed.

    `files`: by name, the `bytes` and the `sha256` of each file. The ranks verify the checksums.
    """
    for name, listed in sorted(files.items()):
        path = os.path.join(folder, name)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})", NOT_SHARED) from None
        if size != listed["bytes"]:
            raise DataError(f"{path} is damaged: it has {size} bytes, not {listed['bytes']}", REMEDY)


def list_checkpoints(folder: str) -> list[str]:
    """The checkpoints in a folder, in the order in which they were written.

    That may not be the order of their steps: a run may resume from an earlier checkpoint.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names if FOLDER_NAME.fullmatch(name)]
    return sorted(paths, key=lambda path: (_written_at(path), path))


def _written_at(path: str) -> int:
    """When a checkpoint was written, nanoseconds; 0 if it is incomplete."""
    try:
        return os.stat(os.path.join(path, FACTS_FILE)).st_mtime_ns
    except OSError:
        return 0


def to_bytes(content: dict[str, Any]) -> bytes:
    """`content` with its checksum, as the bytes of a `checkpoint.json`."""
    with_checksum = dict(content, sha256=_checksum(content))
    return json.dumps(with_checksum, sort_keys=True).encode("utf-8")


def _checksum(content: dict[str, Any]) -> str:
    """The sha256 of the content without its `sha256`. The JSON may contain NaN, as a loss can be NaN."""
    checked = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(checked, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def read(folder: str) -> dict[str, Any]:
    """The content of a checkpoint's `checkpoint.json`. Raises DataError if it is damaged.

    It has `schema`, `step`, `identity` (see `identity`), `facts` (the state of the loop), `files` (see
    `_check_sizes`) and `sha256`.
    """
    path = os.path.join(folder, FACTS_FILE)
    try:
        with open_file(path, encoding="utf-8") as file:
            content = json.load(file)
        is_checkpoint = _is_checkpoint(content)
        is_intact = content.get("sha256") == _checksum(content)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error})", REMEDY) from error
    if not is_checkpoint:
        raise DataError(f"{path} is not a {' or '.join(SCHEMAS)}", REMEDY)
    if not is_intact:
        raise DataError(f"{path} is damaged: its checksum differs", REMEDY)
    return content


def _is_checkpoint(content: dict[str, Any]) -> bool:
    """Whether the content has the fields of its schema, each of its type.

    There are two ways to say no: it returns False for a value that is not allowed, and raises KeyError or TypeError,
    which the caller handles, if a field is missing or has no fields itself.
    """
    if content["schema"] not in SCHEMAS:
        return False
    if type(content["step"]) is not int or not 0 <= content["step"] < MAX_STEPS:
        return False
    if not isinstance(content["identity"], dict) or not isinstance(content["facts"], dict):
        return False
    first_tensors = TENSORS
    if content["schema"] == SPLIT_SCHEMA:
        first_tensors = tensors_of(0)
    files = content["files"]
    if not isinstance(files, dict) or GENERATORS not in files or first_tensors not in files:
        return False
    for name, listed in files.items():
        if not is_plain(name):
            return False
        if not isinstance(listed["sha256"], str) or not isinstance(listed["bytes"], int):
            return False
    return True


def check_identity(saved: dict[str, Any], required: dict[str, Any]) -> None:
    """Raise UsageError naming the differences between a checkpoint's identity and the one that the run requires."""
    differences = []
    for name in sorted({*saved, *required}):
        if saved.get(name) != required.get(name):
            differences.append(f"{name} is {saved.get(name)}, not {required.get(name)}")
    if differences:
        shown = "; ".join(differences[:SHOWN_DIFFERENCES])
        raise UsageError(
            f"the checkpoint belongs to different training: {shown}",
            "use the same options as the run that wrote it",
        )
