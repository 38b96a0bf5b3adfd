"""Which folder of manifests is meant: the argument, the environment, or flagbench's own."""

from __future__ import annotations

import os
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.files import expanded
from flagbench.schema import shipped_manifests

VARIABLE = "FLAGBENCH_MANIFESTS"


def manifests_root(root: Path | None = None) -> Path:
    """The folder that holds cases/, stacks/ and claims/, as an absolute path.

    Raises FlagbenchError (usage) if that is not a folder of manifests.
    """
    named = os.environ.get(VARIABLE, "")
    if root is None and not named:
        return shipped_manifests()
    folder = expanded(named) if root is None else root
    if not (folder / "cases").is_dir():
        origin = f"{VARIABLE} names" if root is None else "given was"
        raise FlagbenchError(
            f"no manifests at {folder}: there is no cases/ in it ({origin} this folder)",
            remedy=f"name a folder with cases/, stacks/ and claims/, or unset {VARIABLE} for flagbench's own",
        )
    return folder.resolve()
