"""Finds the folders of data and weights that a run reads.

They are those that --data and --weights name, or /data. In a folder that `flagbench prepare` wrote, data and weights
are in folders of their own, each with a file `prepared.json`. Host and image both use this module.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple

from flagbench_core.case_kinds import MEASURE

SYNTHETIC = "synthetic"
"""The value of --data for random data."""
INDEX = "prepared.json"
"""The file by which a prepared folder is recognised: the index of its files."""


class DataFolders(NamedTuple):
    """The data and weights that a run reads."""

    source: str | None
    """Where the data are from, `files` or `synthetic`; None for the default of the preset."""
    data: str | None = None
    """The folder of data; None if the run reads none."""
    weights: str | None = None
    """The folder of weights; None for random weights."""


def find_folders(
    case: Mapping[str, Any], preset: str, data: str | None, weights: str | None, default: str | None
) -> DataFolders:
    """The folders of a run.

    Args:
        case: the manifest of the case.
        preset: the name of the preset. `tiny` has its own data set, so it does not use `default`.
        data: the value of --data, a folder or SYNTHETIC; None if it was not given.
        weights: the folder that --weights names; None if it was not given. Then weights next to the data are used.
        default: the folder that is used without --data, if it exists and is not empty: /data.
    """
    source: str | None = None
    folder: str | None = None
    if data == SYNTHETIC:
        source = SYNTHETIC
    elif data is not None:
        source = "files"
        folder = os.path.abspath(data)
    elif _uses_default(case, preset) and _has_files(default):
        source = "files"
        folder = default
    if weights is not None:
        weights = locate(os.path.abspath(weights), "weights")
    elif folder is not None:
        weights = _find_weights_near(folder)
    if folder is not None:
        folder = locate(folder, "data")
    return DataFolders(source, folder, weights)


def _uses_default(case: Mapping[str, Any], preset: str) -> bool:
    """Whether a run without --data uses the default folder: the tiny preset has its own data, a measurement none."""
    return preset != "tiny" and case.get("kind") != MEASURE


def _has_files(folder: str | None) -> bool:
    """Whether a folder can be read and is not empty."""
    try:
        return folder is not None and bool(os.listdir(folder))
    except OSError:
        return False


def _find_weights_near(data: str) -> str | None:
    """The folder of weights below a folder of data; None if there is none.

    It is the one that `prepare` wrote, or the folder model/ of FlagPerf's archive.
    """
    prepared = os.path.join(data, "weights")
    if is_prepared(prepared):
        return prepared
    model = os.path.join(data, "model")
    if os.path.isfile(os.path.join(model, "config.json")):
        return model
    return None


def locate(folder: str, kind: str) -> str:
    """The prepared folder of a kind, `data` or `weights`, below a folder; the folder itself if it has none."""
    inner = os.path.join(folder, kind)
    if folder and is_prepared(inner):
        return inner
    return folder


def is_prepared(folder: str) -> bool:
    """Whether a folder has a `prepared.json`, whose content is not checked here."""
    return os.path.isfile(os.path.join(folder, INDEX))
