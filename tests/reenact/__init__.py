"""The publisher's loops, written a second time from what is known of them, beside the cases that repeat them.

    python -m tests.reenact [CASE ...] [--small]

runs a case and its re-enactment in two processes that take turns, a step of one and a step of the other, on one core
or one device, and compares what a step costs and what it does. A case aims at a ratio of 1.00.

A re-enactment is a module named after its case with one function,

    steps(config, device, weights=None) -> Iterator[Optional[float]]

`config` is a resolved configuration and `weights` the state_dict of the case's own module. The first value, None,
comes when everything is built and the first batch is there; each further one is the loss of a step, in nats, when the
next batch is there: a number, or a tensor where the publisher leaves it on the device. So what runs between two
values is one whole iteration. Nothing in it comes from the loop, the workloads or the optimizers of the cases: the
same synthetic data are read through their data modules, and everything else is written or imported here.
"""
