"""The locks of stacks: which packages, by hash, and which base, by digest, an image is made of."""

from __future__ import annotations

from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical
from flagbench.locks.read import is_stale, load_lock, lock_path, parse_lock, read_lock

__all__ = [
    "Lock",
    "LockEntry",
    "Unresolved",
    "canonical",
    "is_stale",
    "load_lock",
    "lock_path",
    "parse_lock",
    "read_lock",
]
