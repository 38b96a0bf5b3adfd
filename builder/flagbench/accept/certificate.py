"""The certificate of an acceptance: a document and its page in a bundle with the records that they rest on; read back
with every check computed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from flagbench.accept.checks import checks_of, conclude
from flagbench.accept.run import Accepted
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench.records.bundle_archive import BundleError
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report.certificate_page import render
from flagbench.report.junit import Case, Kind, junit_xml
from flagbench.runs.launchers.launch_time import utc_now
from flagbench.runs.reproduce.bundle import read_document, read_records, record_path, this_flagbench, to_json, unlike
from flagbench.runs.reproduce.bundle_files import environment, packages
from flagbench.verdict.efficiency import efficiency

CERTIFICATE, PAGE, JUNIT = "certificate.json", "certificate.html", "junit.xml"
VERSION = "certificate/v1"


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
        "schema": VERSION,
        **conclude(checks, facts, records),
        "created_at": created_at or utc_now(),
        "flagbench": this_flagbench(),
        "seconds": seconds,
        "cost": None if price is None else round(price * seconds / 3600, 4),
        "devices": [device for record in own[:1] for device in _shares(record)],
        "checks": [msgspec.to_builtins(check) for check in checks],
        "numbers": [
            {"part": record.case, "name": each.name, "value": each.value, "unit": each.unit, "scope": each.scope}
            for record in own
            for each in record.metrics
        ],
        "efficiency": [msgspec.to_builtins(found) for record in own if (found := efficiency(record, price))],
        "software": _software(own),
        "facts": facts,
    }


def _shares(record: Record) -> Iterable[dict[str, Any]]:
    """Of each device of a node, the median share of the others' rate over all measurements; None for one alone."""
    of_devices = [each.devices for each in record.measurements if len(each.devices) > 1]
    for rank, device in enumerate(record.system.devices):
        shares = [
            rates[rank] / median([*rates[:rank], *rates[rank + 1 :]]) for rates in of_devices if rank < len(rates)
        ]
        share = round(median(shares), 4) if shares else None
        yield {"rank": rank, "name": device.name, "uuid": device.uuid, "share": share}


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
    """The checks as JUnit XML: one that is inconclusive is an error, not a failure."""
    kinds: dict[str, Kind | None] = {"PASS": None, "FAIL": "failure", "INCONCLUSIVE": "error"}
    cases = [
        Case(
            f"{each['part']}: {each['name']}",
            f"{each['measured']}, against {each['against']}; limit: {each['limit']}",
            kinds[each["outcome"]],
            each["reason"],
        )
        for each in certificate["checks"]
    ]
    return junit_xml("flagbench accept", cases, certificate["seconds"])


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
    """A certificate that was read, and where it contradicts its records."""

    certificate: Mapping[str, Any]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check(files: Mapping[str, Path], catalog: Catalog) -> CertificateCheck:
    """The certificate among the files of a bundle, with its checks computed again from the records.

    Raises BundleError where it cannot be read.
    """
    stated = read_document(files, CERTIFICATE)
    if stated.get("schema") != VERSION:
        raise BundleError(f"its {CERTIFICATE} is not of {VERSION}")
    try:
        records = {name: files[record_path(name)].read_bytes() for name in read_records(files)}
        accepted = Accepted(stated["facts"], records)
        again = certificate_of(accepted, catalog, stated["seconds"], stated["created_at"])
        first, second = (json.loads(to_json(each), parse_float=_nine_digits) for each in (stated, again))
        pages = {PAGE: render(stated), JUNIT: junit_of(stated)}
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise BundleError(f"its {CERTIFICATE} is not whole: {type(error).__name__}: {error}") from error
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    differing = [name for name in unlike(first, second) if not name.startswith("flagbench")]
    changed = [name for name, content in pages.items() if name not in files or files[name].read_bytes() != content]
    told = [f"it does not follow from its records in {', '.join(differing[:5])}"] if differing else []
    told += [f"its {name} is not that of its {CERTIFICATE}" for name in changed]
    if stated.get("flagbench") == this_flagbench() or stated.get("outcome") != again["outcome"]:
        return CertificateCheck(stated, tuple(told), ())
    return CertificateCheck(stated, (), tuple(f"computed again by this flagbench, {each}" for each in told))


def _nine_digits(number: str) -> float:
    """Another Python may add up the last ones otherwise."""
    return float(f"{float(number):.9g}")
