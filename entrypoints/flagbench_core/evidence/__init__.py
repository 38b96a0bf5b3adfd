"""The evidence in a record, and every number that follows from it: one code for the run and for the verifier.

Evidence is integers: microseconds, samples, tokens, bytes and FLOPs, by span of steps and rank. An image computes the
record's metrics from it, and `flagbench verify` computes them again.

  columns.py     integers of steps: rounding, blocks with exact sums, and the short form that a record has
  document.py    spans of steps and what was measured once; read from a record, and written into one
  pipeline.py    bubbles of a pipeline of stages
  generation.py  lengths of a batch that generates tokens, and what a device reads for each token
  roofs.py       matrix products, copies and collectives, repeated; which device is slow
  drift.py       how rates changed between the laps of a soak
  metrics.py     the metrics, a function each
  derive.py      the parts of a record that describe its steps
"""

from __future__ import annotations

from flagbench_core.evidence.columns import EvidenceError
from flagbench_core.evidence.derive import Derived, derive
from flagbench_core.evidence.document import RecordEvidence, Span, StepRange
from flagbench_core.evidence.metrics import Facts

__all__ = ["Derived", "EvidenceError", "Facts", "RecordEvidence", "Span", "StepRange", "derive"]
