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
from typing import Any, NamedTuple

import msgspec

from flagbench.accept.check import Outcome
from flagbench.accept.checks.devices import device_shares
from flagbench.accept.document import Certificate, RunPart
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.limits import limits_of
from flagbench.accept.plan import SERVING, SERVING_GPUS
from flagbench.accept.run import Accepted
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
from flagbench.report.certificate_page import render
from flagbench.report.junit import JUnitCase, Kind, junit_xml
from flagbench.system.clock import parse_utc, utc_now
from flagbench.verdict.efficiency import compute_efficiency
from flagbench.verdict.result import Ratio
from flagbench.verdict.series import CLOCK_SKEW

# The names of the files in a bundle.
CERTIFICATE = "certificate.json"
PAGE = "certificate.html"
JUNIT = "junit.xml"
CERTIFICATE_VERSION = "certificate/v1"
COST_DIGITS = 4
SHARE_DIGITS = 4
"""Decimal digits of costs and of devices' shares."""
MOST_FIELDS_NAMED = 5
"""The most differing fields that a problem names."""


def certificate_of(
    accepted: Accepted, catalog: Catalog, seconds: float, created_at: str | None = None
) -> dict[str, Any]:
    """The document of a certificate, `document.Certificate` as JSON.

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
    records_of_parts = [records[part["record_id"]] for part in facts["parts"] if part["record_id"] in records]
    price = facts["asked"]["price_per_hour"]
    cost = None
    if price is not None:
        cost = round(price * seconds / 3600, COST_DIGITS)
    devices: list[dict[str, Any]] = []
    if records_of_parts:
        devices = _devices(records_of_parts[0])
    return {
        "schema": CERTIFICATE_VERSION,
        **conclude(checks, facts, records),
        "created_at": created_at or utc_now(),
        "flagbench": this_flagbench(),
        "seconds": seconds,
        "cost": cost,
        "devices": devices,
        "checks": [msgspec.to_builtins(check) for check in checks],
        "numbers": _numbers(records_of_parts),
        "efficiency": _efficiencies(records_of_parts, price, facts["gpus"]),
        "software": _software(records_of_parts, facts["stack"]),
        "facts": facts,
    }


def _devices(record: Record) -> list[dict[str, Any]]:
    """The devices of a node, each with its speed relative to the other devices; `document.DeviceShare` as JSON."""
    devices = []
    shares = device_shares(record)
    for rank, device in enumerate(record.system.devices):
        share = shares[rank]
        rounded = None
        if share is not None:
            rounded = round(share, SHARE_DIGITS)
        devices.append({"rank": rank, "name": device.name, "uuid": device.uuid, "share": rounded})
    return devices


def _numbers(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The metrics of the runs, `document.Number` as JSON."""
    numbers = []
    for record in records:
        for metric in record.metrics:
            numbers.append(
                {
                    "part": record.case,
                    "name": metric.name,
                    "value": metric.value,
                    "unit": metric.unit,
                    "scope": metric.scope,
                    "slowest_device": msgspec.to_builtins(metric.slowest_device),
                }
            )
    return numbers


def _efficiencies(records: Iterable[Record], price: float | None, gpus: int) -> list[Any]:
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
            efficiencies.append(msgspec.to_builtins(efficiency_of_run))
    return efficiencies


def _software(records: Iterable[Record], stack: str) -> dict[str, Any]:
    """The versions of the software by name, each from the last run on `stack` that states it."""
    versions: dict[str, Any] = {}
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


def junit_of(certificate: Mapping[str, Any]) -> bytes:
    """The checks as JUnit XML: an inconclusive check is an error, and a check that is not known is skipped."""
    kinds: dict[str, Kind | None] = {
        Outcome.PASS.value: None,
        Outcome.FAIL.value: "failure",
        Outcome.INCONCLUSIVE.value: "error",
        Outcome.NOT_KNOWN.value: "skipped",
    }
    cases = []
    for check_facts in certificate["checks"]:
        summary = f"{check_facts['measured']}, against {check_facts['against']}; limit: {check_facts['limit']}"
        kind = kinds[check_facts["outcome"]]
        cases.append(JUnitCase(_test_name(check_facts), summary, kind, check_facts["reason"]))
    return junit_xml("flagbench accept", cases, certificate["seconds"])


def _test_name(check: Mapping[str, Any]) -> str:
    """The name of a check in JUnit. It contains the kind of the reference, as a number may be compared with several.

    It does not contain values, so that it stays the same in later acceptances.
    """
    name = f"{check['part']}: {check['name']}"
    if check["ratio"] is None:
        return name
    reference = check.get("reference", "")  # a certificate of an earlier version does not have it
    if reference == "row":  # several rows: `against` is "VALUE of claim ID"
        reference = check["against"].partition(" of ")[2]
    return f"{name} against {reference}"


def files_of(
    certificate: Mapping[str, Any], records: Mapping[str, bytes], variables: Mapping[str, str]
) -> dict[str, bytes]:
    """The files of the bundle by their paths in it. `variables`: the environment variables of this process."""
    return {
        CERTIFICATE: to_json(certificate),
        PAGE: render(certificate),
        JUNIT: junit_of(certificate),
        "environment.json": to_json(environment(variables)),
        "packages.json": to_json(packages()),
        **{record_path(name): content for name, content in records.items()},
    }


@dataclass(frozen=True)
class CertificateCheck:
    """The result of checking a certificate."""

    certificate: Mapping[str, Any]
    """The certificate computed again."""
    problems: tuple[str, ...]
    """Contradictions between the certificate and its records."""
    notes: tuple[str, ...]
    """Differences that another version of flagbench explains, which judges the records differently."""


def check(files: Mapping[str, Path], catalog: Catalog) -> CertificateCheck:
    """Check the certificate of a bundle: compute it again from the records and facts, and compare.

    `files`: the files of the bundle by their paths in it. Raises BundleError if the certificate cannot be read.
    """
    certificate = read_document(files, CERTIFICATE)
    try:
        document = msgspec.convert(certificate, Certificate)
        records = read_records(files)
        again = _compute_again(certificate, files, records, catalog)
        problems = list(contradictions(document, records, catalog))
        differing_pages = _differing_pages(certificate, files)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, msgspec.MsgspecError) as error:
        raise BundleError(f"its {CERTIFICATE} is not whole: {type(error).__name__}: {brief(str(error))}") from error
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    certificate_rounded = _rounded(certificate)
    again_rounded = _rounded(again)
    notes: list[str] = []
    same_version = certificate["flagbench"] == this_flagbench()
    other_limits = _differing_limits(document, catalog)
    if same_version:
        differing_fields = differing_paths(certificate_rounded, again_rounded)
        problems += differing_pages
        if other_limits:
            problems.append(f"its limits are not those of this flagbench: {other_limits}")
    else:
        comparison = _compare_versions(certificate_rounded, again_rounded)
        differing_fields = comparison.contradicting
        notes = comparison.notes + differing_pages
        if other_limits and document.facts.limits:
            notes.append(f"it has other limits than this flagbench: {other_limits}")
    if certificate["outcome"] != again["outcome"]:
        message = (
            f"its outcome is {certificate['outcome']}, but its records give {again['outcome']}: {again['reason']}"
        )
        if same_version or not _may_differ(document, again):
            problems.append(message)
        else:
            notes.append(message)
    if differing_fields:
        named = ", ".join(map(brief, differing_fields[:MOST_FIELDS_NAMED]))
        problems.append(f"it does not follow from its records in {named}")
    return CertificateCheck(again, tuple(problems), tuple(notes))


def _compute_again(
    certificate: Mapping[str, Any], files: Mapping[str, Path], records: Mapping[str, Record], catalog: Catalog
) -> dict[str, Any]:
    """The certificate computed again. What does not follow from records, such as its author, is copied."""
    contents = {name: files[record_path(name)].read_bytes() for name in records}
    accepted = Accepted(certificate["facts"], contents)
    again = certificate_of(accepted, catalog, certificate["seconds"], certificate["created_at"])
    again["flagbench"] = certificate["flagbench"]
    return again


def _differing_pages(certificate: Mapping[str, Any], files: Mapping[str, Path]) -> list[str]:
    """A sentence for each page of a bundle that is not the page of its certificate."""
    pages = {PAGE: render(certificate), JUNIT: junit_of(certificate)}
    sentences = []
    for name, content in pages.items():
        if name not in files or files[name].read_bytes() != content:
            sentences.append(f"its {name} differs from the one that its {CERTIFICATE} gives")
    return sentences


def _may_differ(document: Certificate, again: Mapping[str, Any]) -> bool:
    """Whether another version may have come to the outcome that a certificate states.

    A certificate fails exactly if one of its own checks fails. It may pass if every check passes again: this version
    may only miss a reference for matmuls or memory.
    """
    if document.outcome is Outcome.PASS:
        passing = (Outcome.PASS.value, Outcome.NOT_KNOWN.value)
        all_passed = all(check["outcome"] in passing for check in again["checks"])
        return all_passed and document.facts.ending == "done"
    fails = any(check.outcome is Outcome.FAIL for check in document.checks)
    return (document.outcome is Outcome.FAIL) is fails


def _differing_limits(document: Certificate, catalog: Catalog) -> str:
    """The ids of the limits in which a certificate and this flagbench differ; empty if they are the same."""
    names = [device.name for device in document.facts.machine.devices]
    limits = limits_of(catalog, names, processor=document.facts.device_kind == "cpu")
    limits_of_certificate = document.facts.limits
    ids = set()
    for limit in (*limits_of_certificate, *limits):
        if limit not in limits_of_certificate or limit not in limits:
            ids.add(limit.id)
    return ", ".join(sorted(ids))


def contradictions(document: Certificate, records: Mapping[str, Record], catalog: Catalog) -> Iterator[str]:
    """A sentence for each contradiction between the facts of a certificate and the records in its bundle."""
    facts = document.facts
    named: list[str] = []
    for part in facts.parts:
        if part.record_id is not None:
            named.append(part.record_id)
        named += part.history
    for name in named:
        if name not in records:
            yield f"its record {name} is not in it"
    for name in records:
        if name not in named:
            yield f"it does not name the record {name}, which is in it"
    for part in facts.parts:
        record = records.get(part.record_id or "")
        if record is not None:
            yield from _contradictions_of_part(document, part, record, catalog)


def _contradictions_of_part(document: Certificate, part: RunPart, record: Record, catalog: Catalog) -> Iterator[str]:
    """A sentence for each contradiction between the facts of one run and its record."""
    facts = document.facts
    stack, gpus = facts.stack, facts.gpus
    if facts.asked.serving and part.case == SERVING:  # on a stack of its own
        _, stack = case_and_stack(part.target)
        gpus = SERVING_GPUS
    compared = [
        ("case", part.case, record.case),
        ("state", part.state, record.status.state),
        ("reason", part.reason, record.status.reason),
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
    end = parse_utc(document.created_at)
    begin = end - timedelta(seconds=document.seconds)
    created = parse_utc(record.created_at)
    if not begin - CLOCK_SKEW <= created <= end + CLOCK_SKEW:
        yield f"it was made at {document.created_at}, and its record {record.record_id} at {record.created_at}"


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


def _compare_versions(certificate: Mapping[str, Any], again: Mapping[str, Any]) -> _VersionComparison:
    """Compare a certificate of another version with the one that this version computes from the same records."""
    contradicting = []
    notes = []
    for path, certified, computed in differences(_with_check_texts(certificate), _with_check_texts(again)):
        if path.startswith(_FROM_RULES) or path.endswith(_NOT_IN_ALL_VERSIONS):
            notes.append(f"{path}: {_text(certified)} in the certificate, and {_text(computed)} computed again")
        else:
            contradicting.append(path)
    return _VersionComparison(contradicting, notes)


def _with_check_texts(document: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate whose checks are one text each, by part and name, so that two versions can be compared."""
    texts: dict[str, str] = {}
    for check_facts in document["checks"]:
        ratio = ""
        if check_facts["ratio"] is not None:
            ratio = str(Ratio(**check_facts["ratio"]))
        limit = f"limit {check_facts['limit']}"
        clauses = [check_facts["outcome"], check_facts["measured"], ratio, limit, check_facts["reason"]]
        name = f"{check_facts['part']}: {check_facts['name']} against {check_facts['against']}"
        texts[name] = ", ".join(filter(None, clauses))
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
