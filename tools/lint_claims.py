"""Lints manifests/claims and manifests/catalogue: values of published rows that cannot both be right.

python tools/lint_claims.py             # the rows of this checkout
python tools/lint_claims.py FOLDER      # those of another folder of manifests

Prints FILE: ROW: FIELD: RULE: VALUE, but VALUE for each finding, and exits with 1 if there is one. What a claim lists
under `anomalies` is no finding; an anomaly that its rule does not find is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim, PublishedRow, read_catalogue
from tools.claim_rules import Finding, lint_claims, read_rows

ROOT = Path(__file__).resolve().parents[1]
ANOMALIES = {
    "accumulation-unknown": "missing-condition",
    "dropout-unknown": "missing-condition",
    "e2e-is-train-time": "e2e-is-train-time",
    "memory-equals-the-a100s": "copied-memory",
    "mfu-blank": "mfu-blank",
    "mfu-does-not-fit": "mfu-does-not-fit",
    "mfu-formula": "mfu-formula",
    "mfu-range": "mfu-formula",
    "mfu-rounding": "mfu-rounding",
    "mfu-truncated": "mfu-truncated",
    "not-converged": "not-converged",
    "one-speed": "gate-missing",
    "padding-counted": "padding-counted",
    "pretrained-weights": "contradiction",
    "recompute-unknown": "missing-condition",
    "row-spliced": "e2e-too-long",
    "ten-steps": "contradiction",
    "throughput-blank": "gate-missing",
    "throughput-hidden": "gate-missing",
}
"""The rule that finds an anomaly, by the anomaly's id. Most others follow from what is not in the row."""
SPEED = "tokens_per_second_per_device"
ROUNDED = 0.025
"""Part by which FLOPs per token differ where a publisher rounds the speed; the most in the catalogue is 0.019."""


def lint(catalog: Catalog) -> list[Finding]:
    """Every finding in the claims and in the catalogue, without those that an anomaly states."""
    findings: list[Finding] = []
    for case in catalog.cases.values():
        findings += lint_claims(read_rows(catalog, case))
    findings = compare_with_anomalies(catalog.claims.values(), findings)
    cited = read_catalogue(catalog.root, catalog.devices)
    for name, rows in groupby(cited, lambda row: row.id.partition("/")[0]):
        findings += lint_cited(f"manifests/catalogue/{name}.csv", rows, catalog)
    return findings


def compare_with_anomalies(claims: Iterable[Claim], findings: Iterable[Finding]) -> list[Finding]:
    """The findings that no anomaly of their claim explains, and one for each anomaly that its rule does not find."""
    broken = {(finding.row, finding.rule) for finding in findings}
    explained = set()
    remaining = []
    for claim in claims:
        for anomaly in claim.anomalies:
            rule = ANOMALIES.get(anomaly.id, anomaly.id)
            explained.add((claim.id, rule))
            if anomaly.id in ANOMALIES and (claim.id, rule) not in broken:
                file = f"manifests/claims/{claim.case}.yaml"
                published = f"the anomaly {anomaly.id} is listed"
                remaining.append(Finding(file, claim.id, anomaly.field, rule, published, "the row does not have it"))
    remaining += [finding for finding in findings if (finding.row, finding.rule) not in explained]
    return remaining


def lint_cited(file: str, rows: Iterable[PublishedRow], catalog: Catalog) -> Iterator[Finding]:
    """Rules over the rows of a file of the catalogue.

    No two rows describe the same run. No device is faster than its peak. FLOPs per token, which are TFLOP/s or MFU
    times the peak, over tokens/s, depend on the workload and the publisher's software, never on the device.
    """
    descriptions: dict[str, str] = {}
    workloads: dict[tuple[str, ...], list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        name = f"row {row.id.partition('/')[2]}"
        description = repr(replace(row, id="", metrics=()))
        same = descriptions.setdefault(description, name)
        if same != name:
            yield Finding(file, name, "row", "duplicate-row", name, f"{same} describes the same run")
        metrics = {metric.name: metric.value for metric in row.metrics}
        device = catalog.devices.get(row.device_id or "")
        peak = None
        if device is not None:
            peak = device.peak(row.precision_label)
        rate = flops_per_second(metrics, peak)
        if rate is not None and peak is not None and rate > peak:
            yield Finding(file, name, "row", "above-peak", f"{rate:.4g} FLOP/s", f"the peak is {peak:.4g}")
        elif metrics.get("mfu", 0) > 100:
            yield Finding(file, name, "mfu", "above-one", f"{metrics['mfu']:g} %", "it is at most 100 %")
        if rate is not None and metrics.get(SPEED, 0) > 0:
            workload = (row.model, row.task, row.text("sequence_length"), row.remarks, row.software)
            workloads[workload].append((name, rate / metrics[SPEED]))
    yield from lint_workloads(file, workloads.values())


def flops_per_second(metrics: Mapping[str, float], peak: float | None) -> float | None:
    """The rate of a device by its TFLOP/s, else by its MFU (percent) of the peak, FLOP/s; None without either."""
    if "tflops_per_device" in metrics:
        return metrics["tflops_per_device"] * 1e12
    if "mfu" in metrics and peak is not None:
        return metrics["mfu"] / 100 * peak
    return None


def lint_workloads(file: str, workloads: Iterable[Sequence[tuple[str, float]]]) -> Iterator[Finding]:
    """The rows whose FLOPs per token are not those of the other rows of their workload: (row, FLOPs per token)."""
    for flops_per_token in workloads:
        usual = median(flops for _, flops in flops_per_token)
        for name, flops in flops_per_token:
            if abs(flops / usual - 1) > ROUNDED:
                published = f"{flops:.4g} FLOPs per token"
                yield Finding(file, name, SPEED, "flops-per-token", published, f"its workload has {usual:.4g}")


def main() -> int:
    """Lint a folder of manifests; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools/lint_claims.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "manifests", metavar="FOLDER")
    options = parser.parse_args()
    try:
        catalog = load_catalog(options.folder)
        findings = lint(catalog)
    except FlagbenchError as error:
        print(f"error: {error}\nfix: {error.remedy}", file=sys.stderr)
        return int(error.code)
    for finding in findings:
        print(finding)
    print(f"{len(catalog.claims)} claims and the catalogue: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
