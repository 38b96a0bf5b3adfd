"""The commit that this flagbench is a checkout of, where it is one."""

from __future__ import annotations

from pathlib import Path

from flagbench.errors import FlagbenchError

# builder/flagbench/checkout.py: the checkout is three folders up.
TOP = Path(__file__).resolve().parents[2]
"""The folder that is the top of a checkout, where this flagbench is one."""
DECISIVE = ("builder", "entrypoints", "images", "manifests")
"""What enters an image, or decides what does."""
_COMMIT = "# branch.oid "


def commit() -> str | None:
    """The commit's hash, `-dirty` behind it where a file that decides images differs; None outside a checkout.

    A file that git does not know counts too: it is copied into an image as any other.
    """
    # One question for both: this is asked even where there is nothing to build.
    said = _git("status", "--porcelain=v2", "--branch", "--", *DECISIVE)
    if said is None:
        return None
    lines = said.splitlines()
    found = next((line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)), "")
    if not found or not found.isalnum():  # `(initial)`: nothing was committed yet
        return None
    return f"{found}-dirty" if any(not line.startswith("#") for line in lines) else found


def commit_time() -> int:
    """Seconds since 1970 of the commit. Raises FlagbenchError (usage) outside a checkout."""
    found = _git("log", "-1", "--format=%ct")
    if not found:
        raise FlagbenchError(
            "--epoch commit needs flagbench in a git checkout, and this one is not",
            remedy="give the seconds since 1970 instead, like --epoch 1577836800",
        )
    return int(found)


def _git(*arguments: str) -> str | None:
    # An installed copy may lie inside a repository of somebody else's, so the folder itself has to be the top.
    if not (TOP / ".git").exists():
        return None
    import subprocess  # an installed copy has nobody to ask

    # Without optional locks a question writes nothing: somebody may be committing.
    command = ["git", "--no-optional-locks", "-C", str(TOP), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None
