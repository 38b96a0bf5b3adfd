"""How the ranks of a job share a model: data, tensor and pipeline parallelism."""

from __future__ import annotations

from typing import Any, NamedTuple

from flagbench_core.config import replicas

AXES = ("dp", "tp", "pp")


class Coordinates(NamedTuple):
    """A rank's index along each axis of the layout, from 0."""

    dp: int
    tp: int
    pp: int


class Layout(NamedTuple):
    """`dp` data-parallel replicas, each split into `tp` parts of every layer (tensor parallel) and `pp` stages
    (pipeline parallel). The world size is the product.

    Ranks are numbered in Megatron-LM's default order: tp changes fastest, then dp, then pp, so that the parts of a
    layer are on one node.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.dp * self.tp * self.pp

    @property
    def ranks_per_replica(self) -> int:
        """Number of ranks that share one copy of the model."""
        return self.tp * self.pp

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of a rank."""
        return Coordinates(rank // self.tp % self.dp, rank % self.tp, rank // (self.tp * self.dp))

    def counts(self, rank: int) -> bool:
        """Whether this rank counts the samples and tokens of its replica: one rank of each does."""
        at = self.coordinates(rank)
        return at.tp == 0 and at.pp == 0

    def has_loss(self, rank: int) -> bool:
        """Whether this rank has its replica's loss, which the last stage computes."""
        at = self.coordinates(rank)
        return at.tp == 0 and at.pp == self.pp - 1

    def name(self, rank: int) -> str:
        """`rank 3`; if replicas are split, with its coordinates: `rank 3 (tp 1, pp 1, dp 0)`."""
        if self.ranks_per_replica == 1:
            return f"rank {rank}"
        at = self.coordinates(rank)
        return f"rank {rank} (tp {at.tp}, pp {at.pp}, dp {at.dp})"

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ only along one axis. The ranks of a `dp` group have the same parameters."""
        groups: dict[Any, list[int]] = {}
        for rank in range(self.world):
            groups.setdefault(self.coordinates(rank)._replace(**{axis: 0}), []).append(rank)
        return list(groups.values())

    def __str__(self) -> str:
        return f"dp{self.dp} tp{self.tp} pp{self.pp}"


def layout_of(config: dict[str, Any]) -> Layout:
    """The layout of a resolved configuration: `layout.tp`, `layout.pp`, and as many replicas as there are ranks
    for."""
    section = config.get("layout", {})
    return Layout(replicas(config), section.get("tp", 1), section.get("pp", 1))
