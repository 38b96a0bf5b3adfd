"""Which data and weights a run reads: the folders that are named, what `prepare` wrote there, and /data."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple

from flagbench_core.evidence.section import MEASURE

SYNTHETIC = "synthetic"
"""`--data` for random data."""
INDEX = "prepared.json"
"""The file that makes a folder a prepared one."""


class DataFolders(NamedTuple):
    """What a run reads."""

    source: str | None
    """Where the data are from, `files` or `synthetic`; None: the preset's own."""
    data: str | None = None
    weights: str | None = None
    """None: random weights."""


def find_folders(
    case: Mapping[str, Any], preset: str, data: str | None, weights: str | None, default: str | None
) -> DataFolders:
    """The folders of a run.

    Args:
        data: what `--data` names: a folder, or `synthetic`.
        weights: the folder that `--weights` names; without it, that beside the data.
        default: the folder of data without `--data`, /data, if it exists and is not empty. The tiny preset has a data
            set of its own, and a measurement none.
    """
    source: str | None = None
    folder: str | None = None
    if data == SYNTHETIC:
        source = SYNTHETIC
    elif data is not None:
        source, folder = "files", os.path.abspath(data)
    elif preset != "tiny" and case.get("kind") != MEASURE and _has_files(default):
        source, folder = "files", default
    if weights is not None:
        weights = locate(os.path.abspath(weights), "weights")
    elif folder is not None:
        weights = _weights_beside(folder)
    if folder is not None:
        folder = locate(folder, "data")
    return DataFolders(source, folder, weights)


def _has_files(folder: str | None) -> bool:
    try:
        return folder is not None and bool(os.listdir(folder))
    except OSError:
        return False


def _weights_beside(data: str) -> str | None:
    """The weights next to the data: written by `prepare`, or the model/ folder of FlagPerf's archive."""
    prepared = os.path.join(data, "weights")
    if is_prepared(prepared):
        return prepared
    model = os.path.join(data, "model")
    if os.path.isfile(os.path.join(model, "config.json")):
        return model
    return None


def locate(folder: str, kind: str) -> str:
    """The folder of a kind below the output folder of `prepare`, else the folder itself."""
    inner = os.path.join(folder, kind)
    if folder and is_prepared(inner):
        return inner
    return folder


def is_prepared(folder: str) -> bool:
    """Whether a folder has a `prepared.json`, which is not checked."""
    return os.path.isfile(os.path.join(folder, INDEX))
