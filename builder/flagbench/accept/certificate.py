"""Writes the certificate of an acceptance, and checks one that is read.

A certificate is a JSON document (document.Certificate) and a page, in a bundle with the records that they are
computed from. When one is read, everything is computed again and compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from flagbench.accept.certificate_page import render
from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.accept.checks.devices import device_shares
from flagbench.accept.document import Author, Certificate, DeviceShare, Number, RunFacts
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.limits import limits_of
from flagbench.accept.plan import SERVING, SERVING_GPUS
from flagbench.accept.run import AcceptanceResults
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.model import Catalog
from flagbench.records.bundle_archive import BundleError
from flagbench.records.bundle_documents import (
    differences,
    differing_paths,
    environment,
    packages,
    read_document,
    read_records,
    record_path,
    this_flagbench,
    to_json,
)
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report.junit import JUnitCase, Kind, junit_xml
from flagbench.system.clock import parse_utc, utc_now
from flagbench.verdict.efficiency import Efficiency, compute_efficiency
from flagbench.verdict.series import CLOCK_SKEW

# The names of the files in a bundle.
CERTIFICATE = "certificate.json"
PAGE = "certificate.html"
JUNIT = "junit.xml"
CERTIFICATE_VERSION: Literal["certificate/v1"] = "certificate/v1"
COST_DIGITS = 4
SHARE_DIGITS = 4
"""Decimal digits of costs and of devices' shares."""
MOST_FIELDS_NAMED = 5
"""The most differing fields that a problem names."""


def certificate_of(
    accepted: AcceptanceResults, catalog: Catalog, seconds: float, created_at: str | None = None
) -> Certificate:
    """The certificate of an acceptance.

    Args:
        accepted: the facts and records of the acceptance.
        catalog: the cases and limits.
        seconds: the duration of the acceptance.
        created_at: the time of the certificate; None: now.
    """
    # Rounded first: the cost must follow from the seconds that the document states.
    seconds = round(seconds, 1)
    facts = accepted.facts
    records = {name: read_record(content) for name, content in accepted.records.items()}
    checks = checks_of(facts, records, catalog)
    conclusion = conclude(checks, facts, records)
    records_of_runs = [records[run.record_id] for run in facts.parts if run.record_id in records]
    price = facts.asked.price_per_hour
    cost = None
    if price is not None:
        cost = round(price * seconds / 3600, COST_DIGITS)
    devices: tuple[DeviceShare, ...] = ()
    if records_of_runs:
        devices = _devices(records_of_runs[0])
    return Certificate(
        version=CERTIFICATE_VERSION,
        outcome=conclusion.outcome,
        reason=conclusion.reason,
        action=conclusion.action,
        created_at=created_at or utc_now(),
        flagbench=Author(**this_flagbench()),
        seconds=seconds,
        cost=cost,
        devices=devices,
        checks=checks,
        numbers=_numbers(records_of_runs),
        efficiency=_efficiencies(records_of_runs, price, facts.gpus),
        software=_software(records_of_runs, facts.stack),
        facts=facts,
    )


def _devices(record: Record) -> tuple[DeviceShare, ...]:
    """The devices of a node, each with its speed relative to the other devices."""
    devices = []
    shares = device_shares(record)
    for rank, device in enumerate(record.system.devices):
        share = shares[rank]
        if share is not None:
            share = round(share, SHARE_DIGITS)
        devices.append(DeviceShare(rank, device.name, device.uuid, share))
    return tuple(devices)


def _numbers(records: Iterable[Record]) -> tuple[Number, ...]:
    """The metrics of the runs."""
    numbers = []
    for record in records:
        for metric in record.metrics:
            number = Number(record.case, metric.name, metric.value, metric.unit, metric.scope, metric.slowest_device)
            numbers.append(number)
    return tuple(numbers)


def _efficiencies(records: Iterable[Record], price: float | None, gpus: int) -> tuple[Efficiency, ...]:
    """The energy and the cost of the work, for each run in which either is known.

    `price` is that of the machine with all its `gpus`, so the work of a run on fewer of them has no cost.
    """
    efficiencies = []
    for record in records:
        price_of_run = price
        if record.system.devices_per_node < gpus:
            price_of_run = None
        efficiency_of_run = compute_efficiency(record, price_of_run)
        if efficiency_of_run is not None:
            efficiencies.append(efficiency_of_run)
    return tuple(efficiencies)


def _software(records: Iterable[Record], stack: str) -> dict[str, str]:
    """The versions of the software by name, each from the last run on `stack` that states it."""
    versions: dict[str, str] = {}
    for record in records:
        if record.stack != stack:
            continue
        versions_of_run = {
            "python": record.software.python,
            "torch": record.software.torch,
            "cuda": record.software.cuda,
            "hip": record.software.hip,
            "cudnn": record.software.cudnn,
            "nccl": record.software.nccl,
            "driver": record.system.driver,
            "image": record.system.image.digest,
        }
        for name, version in versions_of_run.items():
            if version:
                versions[name] = version
    return versions


def junit_of(certificate: Certificate) -> bytes:
    """The checks as JUnit XML: an inconclusive check is an error, and a check that is not known is skipped."""
    kinds: dict[Outcome, Kind | None] = {
        Outcome.PASS: None,
        Outcome.FAIL: "failure",
        Outcome.INCONCLUSIVE: "error",
        Outcome.NOT_KNOWN: "skipped",
    }
    cases = []
    for check in certificate.checks:
        summary = f"{check.measured}, against {check.against}; limit: {check.limit}"
        cases.append(JUnitCase(_test_name(check), summary, kinds[check.outcome], check.reason))
    return junit_xml("flagbench accept", cases, certificate.seconds)


def _test_name(check: AcceptanceCheck) -> str:
    """The name of a check in JUnit. It contains the kind of the reference, as a number may be compared with several.

    It does not contain values, so that it stays the same in later acceptances.
    """
    name = f"{check.part}: {check.name}"
    if check.ratio is None:
        return name
    reference = check.reference or ""  # a certificate of an earlier version does not have it
    if reference == "row":  # several rows
        return f"{name} against {check.reference_text}"
    return f"{name} against {reference}"


def files_of(
    certificate: Certificate, records: Mapping[str, bytes], variables: Mapping[str, str]
) -> dict[str, bytes]:
    """The files of the bundle by their paths in it. `variables`: the environment variables of this process."""
    return {
        CERTIFICATE: to_json(certificate.to_dict()),
        PAGE: render(certificate, {name: read_record(content) for name, content in records.items()}),
        JUNIT: junit_of(certificate),
        "environment.json": to_json(environment(variables)),
        "packages.json": to_json(packages()),
        **{record_path(name): content for name, content in records.items()},
    }


@dataclass(frozen=True)
class CertificateCheck:
    """The result of checking a certificate."""

    certificate: Certificate
    """The certificate computed again."""
    problems: tuple[str, ...]
    """Contradictions between the certificate and its records."""
    notes: tuple[str, ...]
    """Differences that another version of flagbench explains, which judges the records differently."""


def check(files: Mapping[str, Path], catalog: Catalog) -> CertificateCheck:
    """Check the certificate of a bundle: compute it again from the records and facts, and compare.

    `files`: the files of the bundle by their paths in it. Raises BundleError if the certificate cannot be read.
    """
    document = read_document(files, CERTIFICATE)
    try:
        certificate = msgspec.convert(document, Certificate)
        records = read_records(files)
        again = _compute_again(certificate, files, records, catalog)
        problems = list(contradictions(certificate, records, catalog))
        differing_pages = _differing_pages(certificate, records, files)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, msgspec.MsgspecError) as error:
        raise BundleError(f"its {CERTIFICATE} is not whole: {type(error).__name__}: {brief(str(error))}") from error
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    document_again = _rounded({**again.to_dict(), "facts": document["facts"]})
    document = _rounded(document)
    notes: list[str] = []
    same_version = certificate.flagbench == Author(**this_flagbench())
    other_limits = _differing_limits(certificate, catalog)
    if same_version:
        differing_fields = differing_paths(document, document_again)
        problems += differing_pages
        if other_limits:
            problems.append(f"its limits are not those of this flagbench: {other_limits}")
    else:
        comparison = _compare_versions(document, document_again)
        differing_fields = comparison.contradicting
        notes = comparison.notes + differing_pages
        if other_limits and certificate.facts.limits:
            notes.append(f"it has other limits than this flagbench: {other_limits}")
    if certificate.outcome != again.outcome:
        message = (
            f"its outcome is {certificate.outcome.value}, but its records give {again.outcome.value}: {again.reason}"
        )
        if same_version or not _may_differ(certificate, again):
            problems.append(message)
        else:
            notes.append(message)
    if differing_fields:
        named = ", ".join(map(brief, differing_fields[:MOST_FIELDS_NAMED]))
        problems.append(f"it does not follow from its records in {named}")
    return CertificateCheck(again, tuple(problems), tuple(notes))


def _compute_again(
    certificate: Certificate, files: Mapping[str, Path], records: Mapping[str, Record], catalog: Catalog
) -> Certificate:
    """The certificate computed again. What does not follow from records, such as its author, is copied."""
    contents = {name: files[record_path(name)].read_bytes() for name in records}
    accepted = AcceptanceResults(certificate.facts, contents)
    again = certificate_of(accepted, catalog, certificate.seconds, certificate.created_at)
    return replace(again, flagbench=certificate.flagbench)


def _differing_pages(certificate: Certificate, records: Mapping[str, Record], files: Mapping[str, Path]) -> list[str]:
    """A sentence for each page of a bundle that is not the page of its certificate."""
    pages = {PAGE: render(certificate, records), JUNIT: junit_of(certificate)}
    sentences = []
    for name, content in pages.items():
        if name not in files or files[name].read_bytes() != content:
            sentences.append(f"its {name} differs from the one that its {CERTIFICATE} gives")
    return sentences


def _may_differ(certificate: Certificate, again: Certificate) -> bool:
    """Whether another version may have come to the outcome that a certificate states.

    A certificate fails exactly if one of its own checks fails. It may pass if every check passes again: this version
    may only miss a reference for matmuls or memory.
    """
    if certificate.outcome is Outcome.PASS:
        all_passed = all(check.outcome in (Outcome.PASS, Outcome.NOT_KNOWN) for check in again.checks)
        return all_passed and certificate.facts.ending == "done"
    fails = any(check.outcome is Outcome.FAIL for check in certificate.checks)
    return (certificate.outcome is Outcome.FAIL) is fails


def _differing_limits(certificate: Certificate, catalog: Catalog) -> str:
    """The ids of the limits in which a certificate and this flagbench differ; empty if they are the same."""
    names = [device.name for device in certificate.facts.machine.devices]
    limits = limits_of(catalog, names, processor=certificate.facts.device_kind == "cpu")
    limits_of_certificate = certificate.facts.limits
    ids = set()
    for limit in (*limits_of_certificate, *limits):
        if limit not in limits_of_certificate or limit not in limits:
            ids.add(limit.id)
    return ", ".join(sorted(ids))


def contradictions(certificate: Certificate, records: Mapping[str, Record], catalog: Catalog) -> Iterator[str]:
    """A sentence for each contradiction between the facts of a certificate and the records in its bundle."""
    facts = certificate.facts
    named: list[str] = []
    for run_facts in facts.parts:
        if run_facts.record_id is not None:
            named.append(run_facts.record_id)
        named += run_facts.history
    for name in named:
        if name not in records:
            yield f"its record {name} is not in it"
    for name in records:
        if name not in named:
            yield f"it does not name the record {name}, which is in it"
    for run_facts in facts.parts:
        record = records.get(run_facts.record_id or "")
        if record is not None:
            yield from _contradictions_of_run(certificate, run_facts, record, catalog)


def _contradictions_of_run(
    certificate: Certificate, run_facts: RunFacts, record: Record, catalog: Catalog
) -> Iterator[str]:
    """A sentence for each contradiction between the facts of one run and its record."""
    facts = certificate.facts
    stack, gpus = facts.stack, facts.gpus
    if facts.asked.serving and run_facts.case == SERVING:  # on a stack of its own
        _, stack = case_and_stack(run_facts.target)
        gpus = SERVING_GPUS
    compared = [
        ("case", run_facts.case, record.case),
        ("state", run_facts.state, record.status.state),
        ("reason", run_facts.reason, record.status.reason),
        ("stack", stack, record.stack),
        ("number of ranks", gpus, record.system.nodes * record.system.devices_per_node),
    ]
    if record.system.host:
        compared.append(("host", facts.machine.host, record.system.host))
    if record.stack in catalog.stacks:
        compared.append(("kind of device", facts.device_kind, catalog.stacks[record.stack].device_kind))
    for name, certified, recorded in compared:
        if certified != recorded:
            yield f"its {name} is {_text(certified)}, but {_text(recorded)} in the record {record.record_id}"
    end = parse_utc(certificate.created_at)
    begin = end - timedelta(seconds=certificate.seconds)
    created = parse_utc(record.created_at)
    if not begin - CLOCK_SKEW <= created <= end + CLOCK_SKEW:
        yield f"it was made at {certificate.created_at}, and its record {record.record_id} at {record.created_at}"


_NOT_IN_ALL_VERSIONS = (
    ".joules_per_million",
    ".joules_source",
    ".joules_of",
    ".joules_error",
    ".padding_included",
    ".slowest_device",
)
"""The ends of paths of fields that not every version computes, or not in the same way."""
_FROM_RULES = ("checks.", "outcome", "reason", "action.")
"""The beginnings of paths of fields that follow from rules, which change between versions."""


class _VersionComparison(NamedTuple):
    """How a certificate of another version differs from the one that this version computes."""

    contradicting: list[str]
    """The paths of the fields that contradict its records."""
    notes: list[str]
    """A sentence for each field that the other version judges by other rules."""


def _compare_versions(document: Mapping[str, Any], document_again: Mapping[str, Any]) -> _VersionComparison:
    """Compare a certificate of another version with the one that this version computes from the same records."""
    contradicting = []
    notes = []
    for path, certified, computed in differences(_with_check_texts(document), _with_check_texts(document_again)):
        if path.startswith(_FROM_RULES) or path.endswith(_NOT_IN_ALL_VERSIONS):
            notes.append(f"{path}: {_text(certified)} in the certificate, and {_text(computed)} computed again")
        else:
            contradicting.append(path)
    return _VersionComparison(contradicting, notes)


def _with_check_texts(document: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate whose checks are one text each, by part and name, so that two versions can be compared."""
    texts: dict[str, str] = {}
    for check in msgspec.convert(document["checks"], tuple[AcceptanceCheck, ...]):
        ratio = str(check.ratio or "")
        clauses = [check.outcome.value, check.measured, ratio, f"limit {check.limit}", check.reason]
        texts[f"{check.part}: {check.name} against {check.against}"] = ", ".join(filter(None, clauses))
    return {**document, "checks": texts}


def _text(value: Any) -> str:
    """A value for a message: untrusted text is shortened and made visible."""
    if value is None:
        return "nothing"
    return brief(str(value), limit=300)


def _rounded(document: Mapping[str, Any]) -> Any:
    """A document with its numbers to nine digits: the last digits of a sum depend on the version of Python."""

    def parse_rounded(text: str) -> float:
        return float(f"{float(text):.9g}")

    return json.loads(to_json(document), parse_float=parse_rounded)
