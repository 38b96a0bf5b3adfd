"""The interface between a case, which is one benchmark such as GLM on ReCoRD, and the loops that run and time it.

A case is a package below `cases` whose module `workload` has a function `build(context: Context)`. It returns a
TrainWorkload, an InferWorkload or a MeasureWorkload, according to the `kind` in its manifest. The package `rank`
calls the methods of the workload in a loop, times them, and writes what they return to the record of the run.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Iterable,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
)

import torch
import torch.distributed

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool

INFER = "infer"
"""The name of the pass over the data that is measured in an inference case."""
VALIDATE = "val"
"""The name of the optional pass before it, over data with known answers."""


class Device(Protocol):
    """The device of a rank, as far as cases and engines use it."""

    kind: str
    """The type of the device, `cpu` or `cuda`."""
    backend: str
    """The backend of its process groups, such as `nccl`."""
    torch_device: torch.device

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""

    def sample_memory_peak(self) -> int:
        """Read the memory in use, and return the largest of all readings so far, bytes."""

    def describe(self, index: int) -> dict[str, Any]:
        """Return the name and the `memory_bytes` of the device; `index`: the local rank."""


class Probe(Protocol):
    """Measures how much of a step a rank works, and how long it waits for other ranks.

    An engine attaches it to a model. A step marks the end of its backward pass and, in a pipeline, the forward and
    backward pass of each micro-batch.
    """

    def attach(self, parameters: list[torch.nn.Parameter]) -> None:
        """Watch the gradients of these parameters, given in the order of the forward pass."""

    def attach_buffers(self, network: torch.nn.Module, module: torch.nn.Module) -> None:
        """Watch how long a network broadcasts buffers, such as DistributedDataParallel with the module that it wraps.

        Args:
            network: the wrapper, which broadcasts the buffers of `module` to all ranks when it is called.
            module: the wrapped module, which `network` calls when the broadcast has ended.
        """

    def backward_done(self) -> None:
        """Must be called immediately after the backward pass."""

    def pass_begins(self) -> None:
        """Mark the start of the forward or backward pass of a micro-batch in a pipeline of stages."""

    def pass_ends(self) -> None:
        """Mark the end of the pass."""

    def micro_batch(self) -> None:
        """Mark the start of each micro-batch of a step, and the end of the step's last micro-batch."""


class Context(NamedTuple):
    """Everything that a workload receives."""

    config: dict[str, Any]
    """The resolved configuration: the case's manifest with the sizes of the preset and the user's settings."""
    device: Device
    rank: int
    layout: Layout
    """How the ranks share the model and the data: sizes of the axes tp, pp and dp."""
    local_rank: int
    """The number of the rank within its node."""
    probe: Probe
    spool: RankSpool
    """Where the rank writes its evidence. `beat` and `progress` also tell the parent process that it is alive."""
    data: str | None
    """The data folder; None for random or shipped data."""
    weights: str | None
    """The weights folder; None for random or shipped weights."""
    groups: Mapping[str, torch.distributed.ProcessGroup] = {}
    """The process group of this rank along each axis of the layout. Empty for pure data parallelism, where the
    default process group is used."""

    @property
    def world(self) -> int:
        """The number of ranks of the job."""
        return self.layout.world


class Work(NamedTuple):
    """The amount of work in one batch of one replica, a complete copy of the model.

    The ranks of a replica share its work, so only one of them counts it.
    """

    samples: int
    published_samples: int
    """Samples as the publisher counts them, such as a full batch for an incomplete one."""
    tokens: int
    """Tokens including padding."""
    tokens_useful: int
    """Tokens without padding."""
    flops_executed: float
    """FLOPs of the model on all tokens, without recomputation."""
    flops_useful: float
    """FLOPs that the tokens without padding need."""
    flops_recomputed: float = 0.0
    """FLOPs added by computing activations again in the backward pass."""


class Evaluation(NamedTuple):
    """The result of one evaluation, equal on all ranks.

    An evaluation without an accuracy has None in `accuracy`, `published_accuracy` and `stop_accuracy`, and at least
    one entry in `extra`.
    """

    accuracy: float | None
    """The fraction of right answers, each example counted once."""
    published_accuracy: float | None
    """The accuracy as the publisher counts it, if that differs."""
    counted: int
    """The number of examples behind `accuracy`."""
    stop_accuracy: float | None
    """The accuracy that the stop rule compares with the target. Training ends when it is reached."""
    extra: Sequence[dict[str, Any]] = ()
    """Further results, made by `extra_result`."""


def extra_result(name: str, value: float, unit: str, note: str) -> dict[str, Any]:
    """Return a further result of an evaluation, which becomes a metric of the record."""
    return {"name": name, "value": value, "unit": unit, "note": note}


def require_full_batch(examples: int, batch_size: int, replicas: int) -> None:
    """Raise DataError if the training set does not fill one batch on every replica.

    For cases whose publisher counts every batch as full: with a smaller set, every step would be credited with
    examples that do not exist.
    """
    needed = batch_size * replicas
    if examples < needed:
        raise DataError(
            f"the training set has {examples} examples, but one step of all ranks needs {needed}",
            "use a smaller batch_size or more data",
        )


class Workload(abc.ABC):
    """The common base class of training and inference. `setup` is called first and once."""

    module: torch.nn.Module
    """The model, created by `setup`. At the end of a run its parameters must be equal on all ranks of a data-parallel
    group. A case whose engine keeps the model to itself implements `parameter_sum` instead."""

    @abc.abstractmethod
    def setup(self) -> None:
        """Load the data and build the model on the device."""

    @abc.abstractmethod
    def to_device(self, batch: Any) -> Any:
        """Copy a batch to the device."""

    @abc.abstractmethod
    def work(self, batch: Any) -> Work:
        """Return the amount of work in a batch, which is still on the host."""

    def after_step(self) -> None:  # noqa: B027, optional
        """Do what the publisher does after the clock of the step has stopped, such as reading a result.

        Its time is part of the metrics p_train and p_infer_whole, but not of p_core, whose clock is the publisher's.
        """

    def parameter_sum(self) -> float:
        """Return a checksum of the parameters of this rank, equal on replicas that are in sync."""
        return float(sum(parameter.detach().double().sum() for parameter in self.module.parameters()))

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return facts for the record: `conditions`, `data`, and the number of `parameters`.

        `conditions` are compared with those of a claim, which is a published result. A case that knows the accuracy
        of guessing adds it as `chance`.
        """


class TrainWorkload(Workload):
    """A case that trains."""

    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of steps in an epoch, the same on all ranks."""

    @abc.abstractmethod
    def batches(self, epoch: int) -> Iterable[Any]:
        """Return the batches of an epoch in the case's order, on the host."""

    @abc.abstractmethod
    def step(self, batch: Any) -> float | None:
        """Run one step: forward, backward, update. Returns the loss, or None on a rank that does not compute it."""

    @abc.abstractmethod
    def evaluate(self, last: bool) -> Evaluation | None:
        """Evaluate on the complete evaluation set. Returns None if the case has no evaluation.

        `last`: no training follows, regardless of the result.
        """

    def scaler_skipped(self) -> bool:
        """Return whether the loss scaler skipped the update of the last step, if known without waiting for a device.

        It is called once for each step.
        """
        return False

    def training_facts(self) -> dict[str, Any]:
        """Return facts known when training has ended, such as skipped updates: JSON for `quality.training`."""
        return {}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return everything needed to resume training, except torch's random generators.

        It consists of tensors by name, and of JSON facts, which are the same on all ranks. Every rank calls it.
        Required of a case whose manifest says `resume: true`. Another case is never asked: flagbench_core.config
        rejects --resume and checkpoint_every_steps for it before the run.
        """
        raise NotImplementedError

    def state_owner(self, rank: int) -> int:
        """Return the rank whose `state` restores the rank `rank`. Every rank must give the same answer.

        This is rank 0 if all ranks have the same state. Each rank of a split model or of a distributed optimizer has
        a state that differs from the others'.
        """
        return 0

    def check_state(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        """Raise DataError unless these are the tensors and facts that `state` would return on this rank.

        All ranks call it before any rank calls `restore`. By default nothing is checked.
        """

    def restore(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        """Restore the tensors and facts that the `state` of this rank's `state_owner` returned.

        The tensors are on the host, and those of a split model are mapped from a file, so they must be copied.
        Required of a case with `resume: true`.
        """
        raise NotImplementedError


class InferWorkload(Workload):
    """A case that runs inference."""

    def passes(self) -> Sequence[str]:
        """Return the names of the passes of a full run, in order: INFER, after VALIDATE if the publisher has one."""
        return (INFER,)

    @abc.abstractmethod
    def steps(self, name: str) -> int:
        """Return the number of batches in a pass, the same on all ranks."""

    @abc.abstractmethod
    def batches(self, name: str) -> Iterable[Any]:
        """Return the batches of a pass in the case's order, on the host. All ranks of a replica get the same."""

    @abc.abstractmethod
    def infer(self, batch: Any) -> float | torch.Tensor | None:
        """Run one batch. Returns its mean loss if the case scores text, else None.

        The loss is a scalar tensor if the publisher does not wait for it here, and None on a rank that does not
        compute it.
        """

    def result(self, name: str) -> Evaluation | None:
        """Return the result of a full pass, equal on all ranks, or None if it has none. The call is not timed."""
        return None

    def results(self) -> dict[str, str]:
        """Run fixed inputs and return a digest of each result, by name; by default there are none.

        It is called before the first step and after the last one, and must return the same both times.
        """
        return {}

    def inference_facts(self) -> dict[str, Any]:
        """Return facts known when inference has ended, for the checks of the case."""
        return {}

    def close(self) -> None:
        """Release what the process of the rank does not release when it ends. Called once, after everything else."""


@dataclass(frozen=True)
class Isolated:
    """An operation that is timed alone: before each `run`, the untimed `clear` empties the device's caches."""

    clear: Callable[[], Any]
    run: Callable[[], Any]

    def __call__(self) -> Any:
        """Clear, then run."""
        self.clear()
        return self.run()


class Operation(NamedTuple):
    """An operation to repeat, such as a matmul or a copy."""

    measured: dict[str, Any]
    """Its kind and sizes, from which flagbench_core.evidence.roofs computes its FLOPs or bytes."""
    prepare: Callable[[], Callable[[], Any]]
    """Allocates the tensors, and returns a function that starts one operation.

    Both raise RuntimeError if this device or this version of torch does not have the operation.
    """
    trial: Operation | None = None
    """A small operation of the same kind, whose time predicts whether there is enough time for this one."""


class Measurement(NamedTuple):
    """A measurement of one operation, or of the fastest of several candidates."""

    name: str
    candidates: Sequence[Operation]


class MeasureWorkload(abc.ABC):
    """A case that measures the device, without a model."""

    def setup(self) -> None:  # noqa: B027, optional
        """Prepare what all measurements share."""

    @abc.abstractmethod
    def measurements(self) -> Sequence[Measurement]:
        """Return the measurements to make, the same on all ranks."""

    def results(self) -> dict[str, str]:
        """Run fixed operations and return a digest of the bits of each result, by the operation's name.

        On a sound device, the digests are the same each time.
        """
        return {}

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return facts for the record: `conditions`, which are compared with those of a published result."""
