"""The result of a build, as data and as JSON for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.images.build.tiers import Tier
from flagbench.images.locks.model import Lock


@dataclass(frozen=True)
class TierResult:
    """One tier, built or found up to date."""

    tier: Tier
    image_id: str
    skipped: bool
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "tier": self.tier.name,
            "image_id": self.image_id,
            "context": self.tier.digest,
            "tags": list(self.tier.tags),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class ImageResult:
    """One requested image, with the tier below it unless the image was up to date."""

    name: str
    """`case:stack`, or the stack's name alone."""
    tiers: tuple[TierResult, ...]
    """Lowest first; the last is the image itself."""
    lock: Lock
    """The stack's."""
    sbom: Path | None = None

    @property
    def top(self) -> TierResult:
        """The image itself."""
        return self.tiers[-1]

    def as_json(self) -> dict[str, Any]:
        """For `--json`: the image itself at the top level, every tier under `tiers`."""
        base = self.top.tier.base
        return {
            "image": self.name,
            **{key: value for key, value in self.top.as_json().items() if key not in ("tier", "seconds")},
            "base": {"name": base.reference, "digest": base.identity},
            "lock": self.lock.digest,
            "sbom": None if self.sbom is None else str(self.sbom),
            "tiers": [tier.as_json() for tier in self.tiers],
        }
