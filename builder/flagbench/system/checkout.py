"""The git commit of this checkout of flagbench, which images and records name; None in an installed copy."""

from __future__ import annotations

from pathlib import Path

from flagbench.system.queries import Ending, ask

TOP = Path(__file__).resolve().parents[3]
"""The root of the checkout: this file is builder/flagbench/system/checkout.py."""
DECISIVE = ("builder", "entrypoints", "images", "manifests")
"""The folders that determine the content of an image."""
_COMMIT = "# branch.oid "
"""The start of the line on which `git status --porcelain=v2 --branch` prints the commit."""


def commit() -> str | None:
    """The commit's hash, with `-dirty` if a file that determines images differs from it.

    None outside a checkout, or if git does not answer. Untracked files count too: they are copied into an image like
    any other.
    """
    status = _git("status", "--porcelain=v2", "--branch", "--", *DECISIVE)
    if status is None:
        return None
    name = ""
    clean = True
    for line in status.splitlines():
        if line.startswith(_COMMIT):
            name = line.removeprefix(_COMMIT)
        elif not line.startswith("#"):
            clean = False
    if not name or not name.isalnum():  # `(initial)`: there is no commit yet
        return None
    if clean:
        return name
    return f"{name}-dirty"


def _git(*arguments: str) -> str | None:
    """The output of a git command on this checkout; None outside a checkout, or if git fails."""
    # An installed copy may lie inside another repository, so the folder itself must be the root.
    if not (TOP / ".git").exists():
        return None
    # Without optional locks `git status` writes nothing: a commit may be in progress.
    answer = ask(["git", "--no-optional-locks", "-C", str(TOP), *arguments])
    if answer.ending is not Ending.ANSWERED:
        return None
    return answer.text.strip()
