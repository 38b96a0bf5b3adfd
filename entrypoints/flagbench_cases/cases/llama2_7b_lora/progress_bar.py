"""The publisher's progress bar, which is drawn again in every step with the loss; ours is drawn where nobody looks.

Drawing is part of the published iteration time. What a person sees of a run is the parent's progress line.
"""

import os
from typing import Any


class EpochBar:
    """A bar of tqdm's over the steps of one epoch."""

    def __init__(self, epoch: int, epochs: int, steps: int) -> None:
        from tqdm import tqdm

        self.epoch = "Training Epoch: %d" % (epoch + 1)
        self.epochs = epochs
        self.steps = steps
        self.sink = open(os.devnull, "w", encoding="utf-8")
        self.bar: Any = tqdm(colour="blue", desc=self.epoch, total=steps, dynamic_ncols=True, file=self.sink)

    def advance(self) -> None:
        """A step's update is done."""
        self.bar.update(1)

    def show(self, loss: float) -> None:
        """Draw it again, with the loss of the step just done."""
        step = (self.bar.n - 1, self.steps)
        self.bar.set_description("%s/%d, step %d/%d completed (loss: %s)" % (self.epoch, self.epochs, *step, loss))

    def __enter__(self) -> "EpochBar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()
        self.sink.close()
