"""The result of a build, as data and as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flagbench.build.base import Base
from flagbench.engines.base import Step
from flagbench.locks.model import Lock


@dataclass(frozen=True)
class TierResult:
    """One tier, built or found up to date."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    image_id: str
    digest: str
    """The label dev.flagbench.context."""
    tags: tuple[str, ...]
    skipped: bool
    seconds: float = 0.0
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class ImageResult:
    """One requested image, with the tier below it unless the image was up to date."""

    name: str
    """`case:stack`, or the stack's name alone."""
    tiers: tuple[TierResult, ...]
    """Lowest first; the last is the image itself."""
    base: Base
    lock: Lock
    """The stack's."""
    sbom: Path | None = None
    below: str | None = None
    """The tag of the stack's image that a case's stands on; None for a stack's own."""
    installs: bool = True
    """Whether the image has other packages than the one below it."""

    @property
    def top(self) -> TierResult:
        """The image itself."""
        return self.tiers[-1]

    def as_json(self) -> dict[str, Any]:
        """For `--json`: the image itself at the top level, every tier with its steps under `tiers`."""
        return {
            "image": self.name,
            "image_id": self.top.image_id,
            "context": self.top.digest,
            "tags": list(self.top.tags),
            "skipped": self.top.skipped,
            "base": {"name": self.base.reference, "digest": self.base.identity},
            "lock": self.lock.digest,
            "sbom": None if self.sbom is None else str(self.sbom),
            "tiers": [_tier_json(tier) for tier in self.tiers],
        }


def _tier_json(tier: TierResult) -> dict[str, Any]:
    plain = asdict(tier)
    plain["tier"] = plain.pop("name")
    plain["context"] = plain.pop("digest")
    plain["seconds"] = round(tier.seconds, 3)
    plain["tags"] = list(tier.tags)
    plain["steps"] = [{**asdict(step), "seconds": round(step.seconds, 3)} for step in tier.steps]
    return plain
