"""The certificate of an acceptance: a document and its page in a bundle with the records that they rest on; read back
with every check computed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from flagbench.accept.check import Outcome
from flagbench.accept.checks.devices import device_shares
from flagbench.accept.document import Certificate
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.limits import limits_of
from flagbench.accept.run import Accepted
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench.records.bundle_archive import BundleError
from flagbench.records.bundle_documents import (
    differences,
    environment,
    packages,
    read_document,
    read_records,
    record_path,
    this_flagbench,
    to_json,
    unlike,
)
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report.certificate_page import render
from flagbench.report.junit import JUnitCase, Kind, junit_xml
from flagbench.system.clock import utc_now
from flagbench.verdict.efficiency import efficiency
from flagbench.verdict.result import Ratio
from flagbench.verdict.series import CLOCK_SKEW

CERTIFICATE, PAGE, JUNIT = "certificate.json", "certificate.html", "junit.xml"
CERTIFICATE_VERSION = "certificate/v1"


def certificate_of(
    accepted: Accepted, catalog: Catalog, seconds: float, created_at: str | None = None
) -> dict[str, Any]:
    """The document: the outcome and what to do, every check, the numbers, the machine and its software.

    Every number follows from what the document states, so from the rounded seconds: `check` computes it again.
    """
    seconds = round(seconds, 1)
    facts, records = accepted.facts, {name: read_record(content) for name, content in accepted.records.items()}
    checks = checks_of(facts, records, catalog)
    own = [records[part["record_id"]] for part in facts["parts"] if part["record_id"] in records]
    price = facts["asked"]["price_per_hour"]
    return {
        "schema": CERTIFICATE_VERSION,
        **conclude(checks, facts, records),
        "created_at": created_at or utc_now(),
        "flagbench": this_flagbench(),
        "seconds": seconds,
        "cost": None if price is None else round(price * seconds / 3600, 4),
        "devices": [device for record in own[:1] for device in _shares(record)],
        "checks": [msgspec.to_builtins(check) for check in checks],
        "numbers": [
            {
                "part": record.case,
                "name": each.name,
                "value": each.value,
                "unit": each.unit,
                "scope": each.scope,
                "slowest_device": msgspec.to_builtins(each.slowest_device),
            }
            for record in own
            for each in record.metrics
        ],
        "efficiency": [msgspec.to_builtins(found) for record in own if (found := efficiency(record, price))],
        "software": _software(own),
        "facts": facts,
    }


def _shares(record: Record) -> Iterable[dict[str, Any]]:
    """Of each device of a node, its share of the others' speed, to four digits."""
    for rank, (device, share) in enumerate(zip(record.system.devices, device_shares(record), strict=True)):
        rounded = None if share is None else round(share, 4)
        yield {"rank": rank, "name": device.name, "uuid": device.uuid, "share": rounded}


def _software(records: Iterable[Record]) -> dict[str, Any]:
    """Of the last run that says it."""
    found: dict[str, Any] = {}
    for record in records:
        software, system = record.software, record.system
        known = {name: getattr(software, name) for name in ("python", "torch", "cuda", "hip", "cudnn", "nccl")}
        known |= {"driver": system.driver, "image": system.image.digest}
        found |= {name: version for name, version in known.items() if version}
    return found


def junit_of(certificate: Mapping[str, Any]) -> bytes:
    """The checks as JUnit XML: one that is inconclusive is an error, and one that nobody could make is skipped."""
    kinds: dict[str, Kind | None] = {
        Outcome.PASS.value: None,
        Outcome.FAIL.value: "failure",
        Outcome.INCONCLUSIVE.value: "error",
        Outcome.NOT_KNOWN.value: "skipped",
    }
    cases = [
        JUnitCase(
            _test_name(each),
            f"{each['measured']}, against {each['against']}; limit: {each['limit']}",
            kinds[each["outcome"]],
            each["reason"],
        )
        for each in certificate["checks"]
    ]
    return junit_xml("flagbench accept", cases, certificate["seconds"])


def _test_name(check: Mapping[str, Any]) -> str:
    """Of a check in JUnit: a number that is compared with several things has a test for each, always of that name."""
    name = f"{check['part']}: {check['name']}"
    if check["ratio"] is None:
        return name
    reference = check.get("reference", "")  # a certificate of an earlier version does not have it
    if reference == "row":
        reference = check["against"].partition(" of ")[2]
    return f"{name} against {reference}"


def files_of(
    certificate: Mapping[str, Any], records: Mapping[str, bytes], variables: Mapping[str, str]
) -> dict[str, bytes]:
    """The files of the bundle, by their paths in it."""
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
    """A certificate as it is computed again, and what is to be said of the one that was read."""

    certificate: Mapping[str, Any]
    problems: tuple[str, ...]
    """Where it contradicts its records."""
    notes: tuple[str, ...]
    """Where another version of flagbench judges its records differently."""


def check(files: Mapping[str, Path], catalog: Catalog) -> CertificateCheck:
    """The certificate computed again from the records and the facts among the files of a bundle.

    Raises BundleError where it cannot be read.
    """
    stated = read_document(files, CERTIFICATE)
    try:
        document = msgspec.convert(stated, Certificate)
        records = read_records(files)
        contents = {name: files[record_path(name)].read_bytes() for name in records}
        accepted = Accepted(stated["facts"], contents)
        again = certificate_of(accepted, catalog, stated["seconds"], stated["created_at"])
        again["flagbench"] = stated["flagbench"]
        problems = list(contradictions(document, records, catalog))
        pages = {PAGE: render(stated), JUNIT: junit_of(stated)}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, msgspec.MsgspecError) as error:
        raise BundleError(f"its {CERTIFICATE} is not whole: {type(error).__name__}: {brief(str(error))}") from error
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    changed = [name for name, content in pages.items() if name not in files or files[name].read_bytes() != content]
    changed = [f"its {name} differs from the one that its {CERTIFICATE} gives" for name in changed]
    first, second = (json.loads(to_json(each), parse_float=_nine_digits) for each in (stated, again))
    notes: list[str] = []
    ours = stated["flagbench"] == this_flagbench()
    other_limits = _differing_limits(document, catalog)
    if ours:
        differing = unlike(first, second)
        problems += changed
        if other_limits:
            problems.append(f"its limits are not those of this flagbench: {other_limits}")
    else:
        differing, notes = _compare_versions(first, second)
        notes += changed
        if other_limits and document.facts.limits:
            notes.append(f"it has other limits than this flagbench: {other_limits}")
    if stated["outcome"] != again["outcome"]:
        outcomes = f"its outcome is {stated['outcome']}, but its records give {again['outcome']}: {again['reason']}"
        if ours or not _may_differ(document, again):
            problems.append(outcomes)
        else:
            notes.append(outcomes)
    if differing:
        problems.append(f"it does not follow from its records in {', '.join(map(brief, differing[:5]))}")
    return CertificateCheck(again, tuple(problems), tuple(notes))


def _may_differ(document: Certificate, again: Mapping[str, Any]) -> bool:
    """Whether another version may have concluded so.

    A certificate fails exactly where one of its own checks does. It may pass where every check passes again, and this
    version alone misses something to compare products and memory with.
    """
    if document.outcome is Outcome.PASS:
        passing = (Outcome.PASS.value, Outcome.NOT_KNOWN.value)
        all_passed = all(check["outcome"] in passing for check in again["checks"])
        return all_passed and document.facts.ending == "done"
    fails = any(check.outcome is Outcome.FAIL for check in document.checks)
    return (document.outcome is Outcome.FAIL) is fails


def _differing_limits(document: Certificate, catalog: Catalog) -> str:
    """The ids of the limits in which a certificate and this flagbench differ; empty where they are the same."""
    names = [device.name for device in document.facts.machine.devices]
    limits = limits_of(catalog, names, processor=document.facts.device_kind == "cpu")
    stated = document.facts.limits
    ids = {limit.id for limit in (*stated, *limits) if limit not in stated or limit not in limits}
    return ", ".join(sorted(ids))


def contradictions(document: Certificate, records: Mapping[str, Record], catalog: Catalog) -> Iterator[str]:
    """Where the facts of a certificate contradict the records in its bundle."""
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
    end = datetime.strptime(document.created_at, "%Y-%m-%dT%H:%M:%SZ")
    for part in facts.parts:
        record = records.get(part.record_id or "")
        if record is None:
            continue
        compared = [
            ("case", part.case, record.case),
            ("state", part.state, record.status.state),
            ("reason", part.reason, record.status.reason),
            ("stack", facts.stack, record.stack),
            ("number of ranks", facts.gpus, record.system.nodes * record.system.devices_per_node),
        ]
        if record.system.host:
            compared.append(("host", facts.machine.host, record.system.host))
        if record.stack in catalog.stacks:
            compared.append(("kind of device", facts.device_kind, catalog.stacks[record.stack].device_kind))
        for what, stated, measured in compared:
            if stated != measured:
                yield f"its {what} is {_word(stated)}, but {_word(measured)} in the record {record.record_id}"
        made = datetime.strptime(record.created_at, "%Y-%m-%dT%H:%M:%SZ")
        if not end - timedelta(seconds=document.seconds) - CLOCK_SKEW <= made <= end + CLOCK_SKEW:
            yield f"it was made at {document.created_at}, and its record {record.record_id} at {record.created_at}"


_NOT_IN_ALL_VERSIONS = (
    *(".joules_per_million", ".joules_source", ".joules_of", ".joules_error", ".padding_included"),
    ".slowest_device",
)
"""Fields of `efficiency` and `numbers` that not every version computes, or not in the same way."""


def _compare_versions(stated: Mapping[str, Any], again: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The fields in which a certificate of another version of flagbench contradicts its records, and notes with both
    words where it judges them by other rules."""
    differing, notes = [], []
    for path, one, other in differences(_with_words(stated), _with_words(again)):
        # Rules change between versions, and with them what follows from the same records.
        if path.startswith(("checks.", "outcome", "reason", "action.")) or path.endswith(_NOT_IN_ALL_VERSIONS):
            notes.append(f"{path}: {_word(one)} in the certificate, and {_word(other)} computed again")
        else:
            differing.append(path)
    return differing, notes


def _with_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with each check in words, under its run and name, for comparison with another version's."""
    checks: dict[str, str] = {}
    for each in document["checks"]:
        ratio = "" if each["ratio"] is None else str(Ratio(**each["ratio"]))
        words = [each["outcome"], each["measured"], ratio, f"limit {each['limit']}", each["reason"]]
        name = f"{each['part']}: {each['name']} against {each['against']}"
        checks[name] = ", ".join(filter(None, words))
    return {**document, "checks": checks}


def _word(value: Any) -> str:
    return "nothing" if value is None else brief(str(value), 300)


def _nine_digits(number: str) -> float:
    """Another Python may add up the last ones otherwise."""
    return float(f"{float(number):.9g}")
