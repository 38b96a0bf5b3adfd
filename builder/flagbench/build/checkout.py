"""The commit that this flagbench is a checkout of, where it is one."""

from __future__ import annotations

from pathlib import Path

from flagbench.errors import FlagbenchError


def commit() -> str | None:
    """The commit's hash, `-dirty` behind it where tracked files differ; None outside a checkout."""
    found = _git("rev-parse", "HEAD")
    if found is None:
        return None
    return f"{found}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else found


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
    # builder/flagbench/build/checkout.py: the checkout is four folders up. An installed copy may lie inside
    # a repository of somebody else's, so the folder itself has to be the top.
    import subprocess  # most builds have nothing to do, and no commit to ask for

    top = Path(__file__).resolve().parents[3]
    if not (top / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(top), *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None
