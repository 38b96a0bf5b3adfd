"""What was asked for, as the record says it."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple


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
