"""The publisher's progress bar, which is updated with the loss in every step; here its output is discarded.

Drawing it is part of the published iteration time. The progress shown to users is that of the parent process.
"""

from __future__ import annotations

import os
from typing import Any


class EpochBar:
    """A tqdm progress bar over the steps of an epoch."""

    def __init__(self, epoch: int, epochs: int, steps: int) -> None:
        from tqdm import tqdm

        self.epoch = f"Training Epoch: {epoch + 1}"
        self.epochs = epochs
        self.steps = steps
        self.sink = open(os.devnull, "w", encoding="utf-8")
        self.bar: Any = tqdm(colour="blue", desc=self.epoch, total=steps, dynamic_ncols=True, file=self.sink)

    def advance(self) -> None:
        """Count a step after its update."""
        self.bar.update(1)

    def show(self, loss: float) -> None:
        """Redraw the bar with the loss of the last step."""
        step = f"{self.bar.n - 1}/{self.steps}"
        self.bar.set_description(f"{self.epoch}/{self.epochs}, step {step} completed (loss: {loss})")

    def __enter__(self) -> EpochBar:
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()
        self.sink.close()
