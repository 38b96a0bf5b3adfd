"""What a case implements, and what it is given.

A case is a package below `cases` whose module `workload` has `build(context: Context)`, which returns a TrainWorkload
or an InferWorkload, as the `kind` of its manifest says.
"""

from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import RankSpool

if TYPE_CHECKING:
    from flagbench_cases.rank.probe import CollectiveProbe

INFER = "infer"
"""The pass over the data that an inference case is measured by."""
VALIDATE = "val"
"""The pass that an inference case may make before it, over data with known answers."""


class Context(NamedTuple):
    """What a workload is given: its configuration, its device, its place in the job, and how to report progress."""

    config: Dict[str, Any]
    device: Any
    rank: int
    layout: Layout
    local_rank: int
    probe: "CollectiveProbe"
    spool: RankSpool
    data: Optional[str]
    weights: Optional[str]
    groups: Mapping[str, Any] = {}
    """The process group of this rank along each axis of the layout; empty where dp is the only one: then the default
    process group is that of dp."""

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.layout.world


class Work(NamedTuple):
    """What one batch of one replica is worth. One rank of each replica counts it."""

    samples: int
    published_samples: int
    tokens: int
    tokens_useful: int
    flops_executed: float
    flops_useful: float
    flops_recomputed: float = 0.0  # what recomputing activations adds to flops_executed


class Evaluation(NamedTuple):
    """The result of one evaluation, equal on all ranks; `deciding` is the accuracy that the stop rule looks at.

    An evaluation that asks for no accuracy has None in all three, and at least one of `extra` (see `measure`).
    """

    accuracy: Optional[float]
    published_accuracy: Optional[float]
    counted: int
    deciding: Optional[float]
    extra: Sequence[Dict[str, Any]] = ()


def measure(name: str, value: float, unit: str, note: str) -> Dict[str, Any]:
    """One more number of an evaluation: a metric of the record under its name."""
    return {"name": name, "value": value, "unit": unit, "note": note}


def require_full_batch(examples: int, batch_size: int, replicas: int) -> None:
    """Raise DataError for a train set that does not fill one batch on every replica.

    For a publisher who counts every batch as full: all of its steps would be credited with examples it has not.
    """
    if examples < batch_size * replicas:
        raise DataError(
            "the train set has %d examples and one step of all ranks takes %d" % (examples, batch_size * replicas),
            "use a smaller batch_size or more data",
        )


class Workload:
    """What both kinds have in common. `setup` runs under init; the others are called by the loop only."""

    # The model itself, a torch.nn.Module that `setup` makes: its parameters must be equal, at the end, on all ranks
    # of a data-parallel group.
    module: Any

    def setup(self) -> None:
        """Load the data, build the model on the device."""
        raise NotImplementedError

    def to_device(self, batch: Any) -> Any:
        """Hand a batch to the device."""
        raise NotImplementedError

    def work(self, batch: Any) -> Work:
        """What a host batch is worth."""
        raise NotImplementedError

    def describe(self) -> Dict[str, Any]:
        """What the record says of this case: `conditions` a claim is compared by, `data` facts, `parameters`."""
        raise NotImplementedError


class TrainWorkload(Workload):
    """A case that trains."""

    def steps_per_epoch(self) -> int:
        """Steps of one epoch on this rank, the same on all ranks."""
        raise NotImplementedError

    def batches(self, epoch: int) -> Iterable[Any]:
        """The batches of an epoch in the case's order, on the host."""
        raise NotImplementedError

    def step(self, batch: Any) -> Optional[float]:
        """One whole step: forward, backward, update. Returns the loss; None on a rank that does not have it."""
        raise NotImplementedError

    def after_step(self) -> None:
        """What the publisher does once the step's clock has stopped, such as reading a result from the device. In our
        p_train and in none of the publisher's clocks."""

    def evaluate(self, last: bool) -> Evaluation:
        """Evaluate on the whole evaluation set; `last`: nothing is trained after it, whatever it says."""
        raise NotImplementedError

    def scaler_skipped(self) -> bool:
        """Whether the loss scaler left out the update of the last step. Asked only where its loss is not finite."""
        return False

    def training_facts(self) -> Dict[str, Any]:
        """What is known once training has ended: skipped updates, a loss scale. JSON; `quality.training`."""
        return {}

    def state(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Everything that training resumes from but the random generators: tensors by name, and JSON facts."""
        raise NotImplementedError

    def restore(self, tensors: Dict[str, Any], facts: Dict[str, Any]) -> None:
        """Resume from what `state` gave, on the host."""
        raise NotImplementedError


class InferWorkload(Workload):
    """A case that runs a model forward."""

    def passes(self) -> Sequence[str]:
        """The passes of a whole run, in order: INFER, and VALIDATE before it where the publisher has one."""
        return (INFER,)

    def steps(self, name: str) -> int:
        """Batches of a pass on this rank, the same on all ranks."""
        raise NotImplementedError

    def batches(self, name: str) -> Iterable[Any]:
        """The batches of a pass in the case's order, on the host; the same on all ranks of a replica."""
        raise NotImplementedError

    def infer(self, batch: Any) -> Optional[float]:
        """Run one batch. Returns its mean loss where the case scores text; None where it does not, or on a rank that
        does not have it."""
        raise NotImplementedError

    def result(self, name: str) -> Optional[Evaluation]:
        """What a whole pass found, equal on all ranks; None where it asks for nothing. No clock runs meanwhile."""
        return None
