"""The learning rate as Megatron-LM decays it: over samples, not steps, linear to the maximum, then a cosine.

Megatron-Core has it from 0.9 on.
"""

import math
from typing import Any


class CosineSchedule:
    """Sets the rate of every group of an optimizer of Megatron-Core, and its weight decay, which stays as it is."""

    def __init__(
        self, optimizer: Any, highest: float, lowest: float, warmup: int, length: int, weight_decay: float
    ) -> None:
        """`warmup`: samples in which the rate rises to `highest`; `length`: samples after which it is `lowest`."""
        self.optimizer = optimizer
        self.highest = highest
        self.lowest = lowest
        self.warmup = warmup
        self.length = length
        self.weight_decay = weight_decay
        self.samples = 0
        self.step(0)

    def step(self, samples: int) -> None:
        """Count the samples of an update, and set the rate of the next one."""
        self.samples += samples
        for group in self.optimizer.param_groups:
            group.update(lr=self.rate(self.samples), weight_decay=self.weight_decay * group["wd_mult"])

    def rate(self, samples: int) -> float:
        """The rate after so many samples.

        Source: Megatron-LM's optimizer_param_scheduler.py, `cosine`.
        """
        if self.warmup > 0 and samples <= self.warmup:
            return self.highest * samples / self.warmup
        if samples > self.length:
            return self.lowest
        done = (samples - self.warmup) / (self.length - self.warmup)
        return self.lowest + 0.5 * (math.cos(math.pi * done) + 1.0) * (self.highest - self.lowest)
