"""The interface of a case, and the context that it receives.

A case is a package below `cases` whose module `workload` has `build(context: Context)`. It returns a TrainWorkload,
an InferWorkload or a MeasureWorkload, as the `kind` of its manifest says.
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
"""The pass over the data that is measured in an inference case."""
VALIDATE = "val"
"""The optional pass before it, over data with known answers."""


class Device(Protocol):
    """The device of a rank, as far as cases and engines use it. `torch` is the torch.device, `kind` its type (cpu or
    cuda), `backend` the backend of its process groups."""

    kind: str
    backend: str
    torch: torch.device

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""

    def memory_peak(self) -> int:
        """Peak of the memory in use, bytes."""

    def describe(self, index: int) -> dict[str, Any]:
        """The name and the `memory_bytes` of the device; `index`: the local rank."""


class Probe(Protocol):
    """Tells a rank's own work from its waiting for others. An engine attaches it; a step marks its backward pass, and
    in a pipeline the passes of each micro-batch."""

    def attach(self, parameters: list[torch.nn.Parameter]) -> None:
        """Watch the gradients of these parameters, given in the order of the forward pass."""

    def attach_buffers(self, network: torch.nn.Module, module: torch.nn.Module) -> None:
        """Watch a network that makes the buffers of its `module` equal on all ranks before it calls that."""

    def backward_done(self) -> None:
        """Must be called immediately after the backward pass."""

    def pass_begins(self) -> None:
        """Mark the start of the forward or backward pass of a micro-batch in a pipeline of stages."""

    def pass_ends(self) -> None:
        """Mark the end of the pass."""

    def micro_batch(self) -> None:
        """Mark the start of a micro-batch, and the end of the last one, of a step with several."""


class Context(NamedTuple):
    """What a workload receives: its configuration, its device, its rank and layout, and how to report progress."""

    config: dict[str, Any]
    device: Device
    rank: int
    layout: Layout
    local_rank: int
    probe: Probe
    spool: RankSpool
    data: str | None
    weights: str | None
    groups: Mapping[str, torch.distributed.ProcessGroup] = {}
    """The process group of this rank along each axis of the layout. Empty for pure data parallelism, where the
    default process group is used."""

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.layout.world


class Work(NamedTuple):
    """The amount of work in one batch of one replica. One rank of each replica counts it."""

    samples: int
    published_samples: int
    tokens: int
    tokens_useful: int
    flops_executed: float
    flops_useful: float
    flops_recomputed: float = 0.0  # added to flops_executed by recomputing activations


class Evaluation(NamedTuple):
    """The result of one evaluation, equal on all ranks. `deciding` is the accuracy that the stop rule uses.

    An evaluation without an accuracy has None in all three, and at least one entry in `extra` (see `measure`).
    """

    accuracy: float | None
    published_accuracy: float | None
    counted: int
    deciding: float | None
    extra: Sequence[dict[str, Any]] = ()


def measure(name: str, value: float, unit: str, note: str) -> dict[str, Any]:
    """An additional result of an evaluation, which becomes a metric of the record."""
    return {"name": name, "value": value, "unit": unit, "note": note}


def require_full_batch(examples: int, batch_size: int, replicas: int) -> None:
    """Raise DataError if the training set does not fill one batch on every replica.

    For cases whose publisher counts every batch as full: every step would be credited with examples that do not
    exist.
    """
    if examples < batch_size * replicas:
        raise DataError(
            f"the training set has {examples} examples, but one step of all ranks needs {batch_size * replicas}",
            "use a smaller batch_size or more data",
        )


class Workload(abc.ABC):
    """The common base class of training and inference. `setup` runs during init, the other methods in the loop."""

    # The model, created by `setup`. At the end of a run its parameters must be equal on all ranks
    # of a data-parallel group.
    module: torch.nn.Module

    @abc.abstractmethod
    def setup(self) -> None:
        """Load the data and build the model on the device."""

    @abc.abstractmethod
    def to_device(self, batch: Any) -> Any:
        """Copy a batch to the device."""

    @abc.abstractmethod
    def work(self, batch: Any) -> Work:
        """The amount of work in a batch on the host."""

    def after_step(self) -> None:  # noqa: B027, optional
        """What the publisher does after the step's clock has stopped, such as reading a result from the device.
        Counted in our p_train and p_infer_whole, but in no clock of the publisher that times steps."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for the record: `conditions` to compare with a claim's, `data`, and the number of `parameters`."""


class TrainWorkload(Workload):
    """A case that trains."""

    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, the same on all ranks."""

    @abc.abstractmethod
    def batches(self, epoch: int) -> Iterable[Any]:
        """The batches of an epoch in the case's order, on the host."""

    @abc.abstractmethod
    def step(self, batch: Any) -> float | None:
        """Run one step: forward, backward, update. Returns the loss, or None on a rank that does not compute it."""

    @abc.abstractmethod
    def evaluate(self, last: bool) -> Evaluation | None:
        """Evaluate on the whole evaluation set. `last`: no training follows, regardless of the result. None if the
        case has no evaluation."""

    def scaler_skipped(self) -> bool:
        """Whether the loss scaler skipped the update of the last step, if the host knows without waiting."""
        return False

    def training_facts(self) -> dict[str, Any]:
        """Facts known when training has ended, such as skipped updates: JSON for `quality.training`."""
        return {}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything needed to resume training, except torch's random generators: tensors by name, and JSON facts,
        which are the same on all ranks.

        Required of a case whose manifest says `resume: true`. Called by every rank.
        """
        raise NotImplementedError

    def state_owner(self, rank: int) -> int:
        """The rank whose `state` restores this rank: rank 0, if all ranks have the same. The ranks of a split model,
        and those of a distributed optimizer, have their own. The same answer on every rank."""
        return 0

    def check_state(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        """Raise DataError unless these are the tensors and facts that `state` would return here. Called before
        `restore`, which no rank begins unless all ranks have passed."""

    def restore(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        """Restore what the `state` of this rank's `state_owner` returned. The tensors are on the host, and those of a
        split model are mapped from a file: copy them. Required of a case with `resume: true`."""
        raise NotImplementedError


class InferWorkload(Workload):
    """A case that runs inference."""

    def passes(self) -> Sequence[str]:
        """The passes of a full run, in order: INFER, preceded by VALIDATE if the publisher has one."""
        return (INFER,)

    @abc.abstractmethod
    def steps(self, name: str) -> int:
        """Number of batches in a pass, the same on all ranks."""

    @abc.abstractmethod
    def batches(self, name: str) -> Iterable[Any]:
        """The batches of a pass in the case's order, on the host. All ranks of a replica get the same."""

    @abc.abstractmethod
    def infer(self, batch: Any) -> float | torch.Tensor | None:
        """Run one batch. Returns its mean loss if the case scores text, as a scalar tensor if the publisher does not
        wait for it here; None otherwise, and on a rank that does not compute it."""

    def result(self, name: str) -> Evaluation | None:
        """The result of a full pass, equal on all ranks; None if it has none. Not timed."""
        return None


@dataclass(frozen=True)
class Isolated:
    """An operation that is timed by itself, each time after `clear`, which is not timed."""

    clear: Callable[[], Any]
    run: Callable[[], Any]

    def __call__(self) -> Any:
        """Clear, then run."""
        self.clear()
        return self.run()


class Operation(NamedTuple):
    """An operation to repeat: its kind and sizes, as flagbench_core.evidence.roofs counts them, and how to begin."""

    measured: dict[str, Any]
    prepare: Callable[[], Callable[[], Any]]
    """Allocates what it works on; what that returns starts one operation. Either raises a RuntimeError where this
    device or this torch has no such operation."""
    probe: Operation | None = None
    """A small one of the same kind, by whose time it is judged whether there is time for this one."""


class Measurement(NamedTuple):
    """One operation to measure under this name, or the fastest of several."""

    name: str
    candidates: Sequence[Operation]


class MeasureWorkload(abc.ABC):
    """A case that measures the device, without a model."""

    def setup(self) -> None:  # noqa: B027, optional
        """Prepare what all measurements share."""

    @abc.abstractmethod
    def measurements(self) -> Sequence[Measurement]:
        """The measurements to make, the same on all ranks."""

    def results(self) -> dict[str, str]:
        """A digest of the result of fixed operations by name, to the last bit: equal each time on a sound device."""
        return {}

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for the record: `conditions` to compare with a claim's."""
