"""What a case implements, and what it is given.

A case is a package below `cases` whose module `workload` has `build(context: Context) -> TrainWorkload`.
"""

from typing import TYPE_CHECKING, Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.spool import RankSpool

if TYPE_CHECKING:
    from flagbench_cases.rank.probe import CollectiveProbe


class Context(NamedTuple):
    """What a workload is given: its configuration, its device, its place, and how to say that it moves."""

    config: Dict[str, Any]
    device: Any
    rank: int
    world: int
    local_rank: int
    probe: "CollectiveProbe"
    spool: RankSpool
    data: Optional[str]
    weights: Optional[str]


class Work(NamedTuple):
    """What one batch of one rank is worth."""

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


def require_full_batch(examples: int, batch_size: int, world: int) -> None:
    """Raise DataError for a train set that does not fill one batch on every rank.

    For a publisher who counts every batch as full: all of its steps would be credited with examples it has not.
    """
    if examples < batch_size * world:
        raise DataError(
            "the train set has %d examples and one step of all ranks takes %d" % (examples, batch_size * world),
            "use a smaller batch_size or more data",
        )


class TrainWorkload:
    """What differs between cases. `setup` runs under init; the others are called by the loop only."""

    # The model itself, a torch.nn.Module that `setup` makes: its parameters must be equal on all ranks at the end.
    module: Any

    def setup(self) -> None:
        """Load the data, build model and optimizer on the device."""
        raise NotImplementedError

    def steps_per_epoch(self) -> int:
        """Steps of one epoch on this rank, the same on all ranks."""
        raise NotImplementedError

    def batches(self, epoch: int) -> Iterable[Any]:
        """The batches of an epoch in the case's order, on the host."""
        raise NotImplementedError

    def to_device(self, batch: Any) -> Any:
        """Hand a batch to the device."""
        raise NotImplementedError

    def step(self, batch: Any) -> float:
        """One whole step: forward, backward, update. Returns the loss."""
        raise NotImplementedError

    def after_step(self) -> None:
        """What the publisher does once the step's clock has stopped, such as reading a result from the device. In our
        p_train and in none of the publisher's clocks."""

    def work(self, batch: Any) -> Work:
        """What a host batch is worth."""
        raise NotImplementedError

    def evaluate(self, last: bool) -> Evaluation:
        """Evaluate on the whole evaluation set; `last`: nothing is trained after it, whatever it says."""
        raise NotImplementedError

    def describe(self) -> Dict[str, Any]:
        """What the record says of this case: `conditions` a claim is compared by, `data` facts, `parameters`."""
        raise NotImplementedError

    def scaler_skipped(self) -> bool:
        """Whether the loss scaler left out the update of the last step. Asked only where its loss is not finite."""
        return False

    def training_facts(self) -> Dict[str, Any]:
        """What is known once training has ended: skipped updates, a loss scale. JSON; `quality.training`."""
        return {}

    def state(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Everything that training goes on from but the random generators: tensors by name, and JSON facts."""
        raise NotImplementedError

    def restore(self, tensors: Dict[str, Any], facts: Dict[str, Any]) -> None:
        """Resume from what `state` gave, on the host."""
        raise NotImplementedError
