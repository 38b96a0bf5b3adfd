"""Schema-valid manifest data turned into Case, Stack and Claim, one field per key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flagbench.catalog.model import (
    Accelerator,
    Anomaly,
    Case,
    Claim,
    ClaimMetric,
    ClaimRun,
    Compiled,
    DockerNeeds,
    KubernetesNeeds,
    MetricSpec,
    Peak,
    PublishedFormula,
    Quirk,
    Source,
    Stack,
    StackBuild,
)

Raw = Mapping[str, Any]

SHAPES = ("model", "sequence_length")
"""What a ratio of speeds needs to be equal, where a case manifest has no `shapes` of its own."""


def build_case(raw: Raw, path: Path) -> Case:
    """A Case from its manifest's data, the groups in `depends_on` expanded to condition names."""
    groups = {name: tuple(conditions) for name, conditions in raw["condition_groups"].items()}
    return Case(
        name=raw["name"],
        title=raw["title"],
        task=raw["task"],
        unit=raw["unit"],
        gate=raw["gate"],
        divisions=tuple(raw["divisions"]),
        precisions=tuple(raw["precisions"]),
        default_precision=raw["default_precision"],
        presets=raw["presets"],
        settable=raw["settable"],
        condition_groups=groups,
        does_not_run=raw["does_not_run"],
        needs=tuple(raw.get("needs", ())),
        metrics=tuple(_metric_spec(metric, groups) for metric in raw["metrics"]),
        quirks=tuple(Quirk(**quirk) for quirk in raw["quirks"]),
        published=raw["published"],
        shapes=tuple(raw.get("shapes", SHAPES)),
        published_formula=_published_formula(raw["flops"].get("published")),
        raw=raw,
        path=path,
    )


def _published_formula(raw: Raw | None) -> PublishedFormula | None:
    return None if raw is None else PublishedFormula(**raw)


def _metric_spec(raw: Raw, groups: Mapping[str, tuple[str, ...]]) -> MetricSpec:
    return MetricSpec(
        name=raw["name"],
        unit=raw["unit"],
        scope=raw["scope"],
        better=raw["better"],
        depends_on=tuple(condition for group in raw["depends_on"] for condition in groups[group]),
        held_by=raw.get("held_by"),
    )


def build_stack(raw: Raw, path: Path, cases: Mapping[str, Case]) -> Stack:
    """A Stack from its manifest's data; it runs every case of `cases` that neither side refuses."""
    device = raw["device"]
    return Stack(
        name=raw["name"],
        title=raw["title"],
        vendor=raw["vendor"],
        aliases=tuple(raw["aliases"]),
        base_image=raw["base"]["image"],
        base_obtain=raw["base"]["obtain"],
        platform=raw["platform"],
        python=raw["python"],
        expects=raw["expects"],
        does_not_run=raw["does_not_run"],
        runs=tuple(
            name
            for name, case in sorted(cases.items())
            if name not in raw["does_not_run"] and raw["name"] not in case.does_not_run
        ),
        build=_stack_build(raw["build"]),
        device_kind=device["kind"],
        visibility_variable=device["visibility_variable"],
        driver_floor=device["driver_floor"],
        backend=device["backend"],
        docker=_docker_needs(raw["docker"]),
        kubernetes=_kubernetes_needs(raw["kubernetes"]),
        monitor=raw["monitor"],
        accelerators=tuple(_accelerator(entry) for entry in raw["accelerators"]),
        raw=raw,
        path=path,
    )


def _stack_build(raw: Raw) -> StackBuild:
    return StackBuild(
        interpreter=raw["interpreter"],
        apt=tuple(raw["apt"]),
        from_base=tuple(raw["from_base"]),
        packages=tuple(raw["packages"]),
        indexes=tuple(raw["indexes"]),
        compiled=tuple(Compiled(**{**entry, "apt": tuple(entry.get("apt", ()))}) for entry in raw["compiled"]),
        optional=tuple(raw.get("optional", ())),
        left_out=raw["left_out"],
        env=raw["env"],
    )


def _docker_needs(raw: Raw) -> DockerNeeds:
    return DockerNeeds(
        gpus=raw["gpus"],
        devices=tuple(raw["devices"]),
        groups=tuple(raw["groups"]),
        capabilities=tuple(raw["capabilities"]),
        shm_size=raw["shm_size"],
        ulimits=raw["ulimits"],
        root=raw["root"],
        multi_node_devices=tuple(raw["multi_node"]["devices"]),
        multi_node_capabilities=tuple(raw["multi_node"]["capabilities"]),
    )


def _kubernetes_needs(raw: Raw) -> KubernetesNeeds:
    return KubernetesNeeds(
        resource=raw["resource"],
        node_labels={label: tuple(values) for label, values in raw["node_labels"].items()},
        tolerations=tuple(raw["tolerations"]),
        memory_per_device_gib=raw["memory_per_device_gib"],
        cpus_per_device=raw["cpus_per_device"],
        shm_per_device_gib=raw["shm_per_device_gib"],
    )


def _accelerator(raw: Raw) -> Accelerator:
    return Accelerator(
        match=tuple(raw["match"]),
        name=raw["name"],
        memory_gib=raw["memory_gib"],
        peaks={precision: Peak(**peak) for precision, peak in raw["peaks"].items()},
    )


def build_claims(raw: Raw, path: Path) -> tuple[Claim, ...]:
    """The claims of one file, in its order; they share its case, and its source where it has one only."""
    sources = {name: Source(**source) for name, source in raw.get("sources", {}).items()}
    only = Source(**raw["source"]) if "source" in raw else None
    return tuple(
        _claim(entry, raw["case"], only or sources[entry["source"]], sources, path) for entry in raw["claims"]
    )


def _claim(raw: Raw, case: str, source: Source, sources: Mapping[str, Source], path: Path) -> Claim:
    return Claim(
        id=raw["id"],
        case=case,
        title=raw["title"],
        row=raw["row"],
        stack=raw["stack"],
        no_stack=raw.get("no_stack"),
        published_image=raw["published_image"],
        precision_label=raw["precision"]["label"],
        precision_executed=raw["precision"]["executed"],
        precision_derivation=raw["precision"]["derivation"],
        run=ClaimRun(**raw["run"]),
        conditions=raw["conditions"],
        environment=raw["environment"],
        metrics=tuple(_claim_metric(metric, sources) for metric in raw["metrics"]),
        anomalies=tuple(Anomaly(**anomaly) for anomaly in raw["anomalies"]),
        source=source,
        path=path,
    )


def _claim_metric(raw: Raw, sources: Mapping[str, Source]) -> ClaimMetric:
    return ClaimMetric(
        name=raw["name"],
        value=raw["value"],
        unit=raw["unit"],
        scope=raw["scope"],
        of=raw.get("of"),
        printed=raw.get("printed"),
        source=sources[raw["source"]] if "source" in raw else None,
    )
