"""The locks of stacks: which packages, by hash, and which base, by digest, an image is made of."""

from __future__ import annotations

from flagbench.locks.files import is_stale, load_lock, lock_path, read_lock, write_lock
from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical

__all__ = [
    "Lock",
    "LockEntry",
    "Unresolved",
    "canonical",
    "is_stale",
    "load_lock",
    "lock_path",
    "read_lock",
    "write_lock",
]
