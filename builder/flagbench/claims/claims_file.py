"""The rows of a claims/v1 file, flagbench's own or a user's; its anomalies are not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flagbench.claims.numbers import Cell, read_count, read_number
from flagbench.claims.rows import Row, TableError
from flagbench.manifests.device_names import find_cards
from flagbench.manifests.documents import Document
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.load import build_claim, read_manifest
from flagbench.manifests.model import Case, Catalog, Claim, ClaimsManifest


def read_claims(path: Path, catalog: Catalog) -> list[Row]:
    """The rows of a file. Raises TableError with every problem, by line, if it is not as its schema says."""
    document = read_manifest(path, str(path), ClaimsManifest)
    if not document.problems:
        document.require_known("case", "case", catalog.cases)
        for pattern in ("claims.*.source", "claims.*.metrics.*.source"):
            document.require_known(pattern, "entry of `sources`", document.data.get("sources", {}))
    if not document.problems:
        for index, claim in enumerate(document.data["claims"]):
            _check_claim(document, index, claim, catalog.cases[document.data["case"]])
    if document.problems:
        raise TableError(
            [str(problem) for problem in document.problems],
            remedy="docs/add-a-case.md shows a claims file; manifests/schema/claims-v1.json has all fields",
        )
    return [
        _row(
            index + 1,
            document.line(("claims", index)),
            build_claim(raw, document.data, path),
            catalog,
        )
        for index, raw in enumerate(document.data["claims"])
    ]


def _check_claim(document: Document, index: int, claim: Any, case: Case) -> None:
    """What the schema cannot say: that there is a source, and that metrics are as the case has them."""
    if "source" not in {*document.data, *claim}:
        document.problem(("claims", index), "needs a `source`, an entry of `sources`")
    for at, metric in enumerate(claim["metrics"]):
        spec = case.metric(metric["name"])
        if spec is None or (metric["unit"], metric["scope"]) != (spec.unit, spec.scope):
            known = f"in {spec.unit}, scope {spec.scope}" if spec else "no metric of the case"
            document.problem(("claims", index, "metrics", at), f"{metric['name']} is {known}")


def _row(number: int, line: int, claim: Claim, catalog: Catalog) -> Row:
    case = catalog.cases[claim.case].held_to(claim.metrics)
    conditions = {name: _text(value) for name, value in claim.conditions.items()}
    stated = {name: text for name, text in conditions.items() if text != NOT_PUBLISHED}
    nodes, devices = (read_count(stated.get(name, "")) for name in ("nodes", "devices"))
    device = stated.get("device_model", "")
    total = next((metric.of for metric in claim.metrics if metric.of), None)
    return Row(
        number=number,
        line=line,
        name=claim.id,
        case=case,
        device=device,
        cards=find_cards(device, catalog.devices.values()),
        nodes=nodes,
        devices=devices,
        precision="" if claim.precision.label == NOT_PUBLISHED else claim.precision.label.lower(),
        executed=claim.precision.executed,
        conditions=stated,
        metrics=_metrics(claim),
        memory_total=None if total is None else read_number(_text(total)),
        unstated=frozenset(conditions.keys() - stated.keys()),
        complete=True,
        run_devices=claim.run.nodes * claim.run.gpus,
    )


def _metrics(claim: Claim) -> dict[str, Cell]:
    cells = {metric.name: read_number(metric.printed or _text(metric.value)) for metric in claim.metrics}
    return {name: cell for name, cell in cells.items() if cell is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
