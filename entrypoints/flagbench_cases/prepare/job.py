"""The child process that runs a conversion, `python -m flagbench_cases.prepare.job FOLDER`; see child.py."""

import importlib
import importlib.util
import os
import sys
from typing import Any, Dict, List, Optional

from flagbench_cases.prepare import child, prepared_folder
from flagbench_cases.prepare.meter import Meter
from flagbench_cases.shared.errors import DataError, UsageError


def module_of(case: str) -> Any:
    """The `prepare` module of a case. Raises UsageError if it has none."""
    check_prepares(case)
    return importlib.import_module(_module_name(case))


def check_prepares(case: str) -> None:
    """Raise UsageError if a case has no prepared data."""
    if importlib.util.find_spec(_module_name(case)) is None:
        raise UsageError(
            "%s reads the published files directly: there is nothing to prepare" % case,
            "run flagbench run %s --data FOLDER; docs/run-a-case.md lists the files" % case,
        )


def _module_name(case: str) -> str:
    return "flagbench_cases.cases.%s.prepare" % case.replace("-", "_")


def work(plan: Dict[str, Any], meter: Meter, folders: Dict[str, Any]) -> None:
    """Execute the plan; adds the facts of each prepared folder to `folders`, by kind. Raises CaseError."""
    case, out = plan["case"], plan["out"]
    if plan["check"]:
        check(case, out, meter, folders)
        return
    module = module_of(case)
    check_sources(case, module, plan)
    kinds = [kind for kind in prepared_folder.KINDS if plan[kind] is not None]
    for kind in kinds:  # before the conversion of the first kind, which may take an hour
        prepared_folder.check_target(out, kind, plan["force"])
    for kind in kinds:
        folders[kind] = convert(plan, module, kind, meter)


def check_sources(case: str, module: Any, plan: Dict[str, Any]) -> None:
    """Raise UsageError for sources that the case does not support, or if none is given."""
    wants = module.WANTS
    takes = "; ".join("--%s: %s" % (name, wants[name]) for name in ("data", "weights", "vocabulary") if name in wants)
    for name in ("data", "weights", "vocabulary"):
        if plan[name] is not None and name not in wants:
            raise UsageError("%s does not support --%s" % (case, name), "it takes %s" % takes)
    if plan["data"] is None and plan["weights"] is None:
        raise UsageError("no source was given", "%s takes %s" % (case, takes))
    if plan["vocabulary"] is not None and plan["data"] is None:
        raise UsageError("--vocabulary requires --data", "%s takes %s" % (case, takes))


def convert(plan: Dict[str, Any], module: Any, kind: str, meter: Meter) -> Dict[str, Any]:
    """Prepare one kind; returns the facts of the new folder."""
    case, out, source = plan["case"], plan["out"], plan[kind]
    meter.subject = kind
    licence = licence_of(module.LICENCES, kind, plan["vocabulary"] is not None)
    with prepared_folder.writing(out, case, kind, licence, plan["force"], meter) as writer:
        meter.folder = writer.folder
        if kind == "data":
            module.prepare_data(source, plan["vocabulary"], writer, meter)
        else:
            module.prepare_weights(source, writer, meter)
    meter.end_phase()
    return as_json(prepared_folder.open_folder(os.path.join(out, kind), case, kind, thorough=False))


def licence_of(licences: Dict[str, str], kind: str, with_vocabulary: bool) -> Optional[str]:
    """The known licence of a kind. Token ids derive from the vocabulary too, so its licence is included."""
    known = licences.get(kind)
    if kind != "data" or not with_vocabulary or "vocabulary" not in licences:
        return known
    return "%s; vocabulary: %s" % (known or "unknown", licences["vocabulary"])


def check(case: str, out: str, meter: Meter, folders: Dict[str, Any]) -> None:
    """Verify all checksums of the prepared folders below OUT, or of OUT itself. Raises DataError."""
    for kind in kinds_in(out):
        meter.subject = kind
        folder = prepared_folder.locate(out, kind)
        folders[kind] = as_json(prepared_folder.open_folder(folder, case, kind, thorough=True, report=meter))
        meter.end_phase()


def kinds_in(out: str) -> List[str]:
    """The kinds of the prepared folders below OUT, or of OUT itself. Raises DataError if there are none."""
    kinds = [kind for kind in prepared_folder.KINDS if prepared_folder.is_prepared(os.path.join(out, kind))]
    if not kinds and prepared_folder.is_prepared(out):
        kinds = [prepared_folder.kind_of(out)]
    if not kinds:
        raise DataError("%s has no prepared folder" % out, "give the folder that was used as prepare -o")
    return kinds


def as_json(made: prepared_folder.PreparedFolder) -> Dict[str, Any]:
    """An opened folder as JSON."""
    return {
        "folder": made.folder,
        "format": made.format,
        "digest": made.digest,
        "files": made.files,
        "facts": made.facts,
        "sources": made.sources,
        "licence": made.licence,
    }


def kept(plan: Dict[str, Any], folders: Dict[str, Any]) -> str:
    """What a failure leaves, for its remedy."""
    return "" if plan["check"] else "".join("; %s was finished and is kept" % kind for kind in folders)


if __name__ == "__main__":
    sys.exit(child.serve(sys.argv[1], work, kept))
