"""The publisher's loops, written a second time from what is known of them, beside the cases that repeat them.

    python -m tests.reenact CASE --stack STACK --out docs/measured

runs a case and its re-enactment in turn on one device. The faithful division aims at a ratio of 1.00. Nothing here
comes from the loop, the workloads or the optimizers of the cases: the same synthetic data are read through their data
modules, and GLM, of which there is no second implementation in a library, through its model file.
"""

from typing import List, NamedTuple


class Ran(NamedTuple):
    """The steps of a loop: the loss of each, in nats, and its seconds by the publisher's clock."""

    losses: List[float]
    seconds: List[float]
