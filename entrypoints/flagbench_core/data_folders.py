"""Which data and weights a run reads: the folders that are named, what `prepare` wrote there, and /data."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Optional

from flagbench_core.evidence.section import MEASURE

SYNTHETIC = "synthetic"
"""`--data` for random data."""
INDEX = "prepared.json"
"""The file that makes a folder a prepared one."""


class DataFolders(NamedTuple):
    """What a run reads."""

    source: Optional[str]
    """Where the data are from, `files` or `synthetic`; None: the preset's own."""
    data: Optional[str] = None
    weights: Optional[str] = None
    """None: random weights."""


def find_folders(
    case: Mapping[str, Any], preset: str, data: Optional[str], weights: Optional[str], default: Optional[str]
) -> DataFolders:
    """The folders of a run.

    Args:
        data: what `--data` names: a folder, or `synthetic`.
        weights: the folder that `--weights` names; without it, that beside the data.
        default: the folder of data without `--data`, if it is there and not empty: /data. The tiny preset has a data
            set of its own, and a measurement none.
    """
    source: Optional[str] = None
    folder: Optional[str] = None
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
    return DataFolders(source, folder and locate(folder, "data"), weights)


def _has_files(folder: Optional[str]) -> bool:
    try:
        return folder is not None and bool(os.listdir(folder))
    except OSError:
        return False


def _weights_beside(data: str) -> Optional[str]:
    """The weights next to the data: written by `prepare`, or the model/ folder of FlagPerf's archive."""
    prepared = os.path.join(data, "weights")
    if is_prepared(prepared):
        return prepared
    model = os.path.join(data, "model")
    return model if os.path.isfile(os.path.join(model, "config.json")) else None


def locate(folder: str, kind: str) -> str:
    """The folder of a kind below the output folder of `prepare`, else the folder itself."""
    inner = os.path.join(folder, kind)
    return inner if folder and is_prepared(inner) else folder


def is_prepared(folder: str) -> bool:
    """Whether a folder has a `prepared.json`, which is not checked."""
    return os.path.isfile(os.path.join(folder, INDEX))
