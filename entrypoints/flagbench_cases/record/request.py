"""What was asked for, as the record says it."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from flagbench_cases.shared.layout import Layout, layout_of


class Request(NamedTuple):
    """What was asked for, as far as it could be resolved."""

    argv: List[str]
    case: str
    stack: Dict[str, Any]
    run_id: str
    preset: str
    division: str
    nodes: int
    gpus: int
    config: Optional[Dict[str, Any]]
    config_digest: Optional[str]
    formula: Optional[str]
    unit: str
    gate: Optional[str] = None  # the metric that a claim is held against first
    checks: Tuple[str, ...] = ()  # what the case's manifest names: each must be made where it applies, and hold
    published_flops: Optional[Dict[str, Any]] = None  # the publisher's own formula of utilisation

    @property
    def layout(self) -> Layout:
        """How the ranks share the model; of a request that could not be resolved, as many replicas as ranks."""
        return Layout(self.nodes * self.gpus) if self.config is None else layout_of(self.config)

    @property
    def kind(self) -> str:
        """`train` or `infer`, as the case is."""
        return "infer" if self.config is not None and "infer" in self.config else "train"
