"""The program of the child process: `python -m flagbench_cases.prepare.child_main FOLDER`.

It reads a plan from the folder, prepares or checks data and weights, and writes an answer; child.py describes both.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

from flagbench_cases.prepare.child import ANSWER, MEMORY_REMEDY, PLAN
from flagbench_cases.prepare.prepared_folder import Verification, open_folder
from flagbench_cases.prepare.progress import Progress
from flagbench_cases.prepare.writer import check_target, writing
from flagbench_cases.shared import processes
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.files import KINDS
from flagbench_cases.shared.manifests import load_case, package_of
from flagbench_core.data_folders import is_prepared
from flagbench_core.exit_codes import ExitCode


def main(folder: str) -> int:
    """Read the plan, carry it out, write the answer. A bug leaves its traceback and exit code 1."""
    processes.die_with_parent()
    with open(os.path.join(folder, PLAN), encoding="utf-8") as file:
        plan = json.load(file)
    progress = Progress()
    results: dict[str, Any] = {}
    failure = _attempt(plan, progress, results)
    progress.end_phase()
    answer: dict[str, Any] = {"results": results}
    if failure is not None:
        remedy = failure.remedy
        if plan["do"] == "prepare":
            for kind in results:
                remedy += f"; {kind} was finished and is kept"
        answer = {"failure": {"message": failure.message, "remedy": remedy, "code": int(failure.code)}}
    with open(os.path.join(folder, ANSWER), "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0


def _attempt(plan: dict[str, Any], progress: Progress, results: dict[str, Any]) -> CaseError | None:
    """Carry out the plan and add to `results`; returns the error it fails with, or None.

    Unexpected exceptions propagate.
    """
    out_of_memory = CaseError("there is not enough memory", MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    try:
        if plan["do"] == "prepare":
            prepare(plan, progress, results)
        else:
            check(plan, progress, results)
    except CaseError as error:
        return error
    except MemoryError:
        return out_of_memory
    except OSError as error:
        return DataError(str(error), "check that the file is readable and the folder is writable")
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # torch's message
            raise
        return out_of_memory
    return None


def prepare(plan: dict[str, Any], progress: Progress, folders: dict[str, Any]) -> None:
    """Convert the sources of a plan; adds the facts of each folder to `folders`, by kind. Raises CaseError."""
    case = plan["case"]
    out = plan["out"]
    module = import_prepare(case)
    check_sources(case, module, plan)
    kinds = [kind for kind in KINDS if plan[kind] is not None]
    for kind in kinds:  # before the conversion of the first kind, which may take an hour
        check_target(out, kind, plan["force"])
    for kind in kinds:
        convert(plan, module, kind, progress)
        folders[kind] = open_folder(out, case, kind, verify=Verification.SIZES).as_json()


def check(plan: dict[str, Any], progress: Progress, folders: dict[str, Any]) -> None:
    """Verify all checksums of the prepared folders below OUT; adds their facts to `folders`, by kind.

    Raises DataError.
    """
    case = plan["case"]
    out = plan["out"]
    kinds = [kind for kind in KINDS if is_prepared(os.path.join(out, kind))]
    if not kinds:
        raise DataError(f"{out} has no prepared folder", "give the folder that was used as prepare -o")
    for kind in kinds:
        progress.begin(kind)
        folders[kind] = open_folder(out, case, kind, verify=Verification.CHECKSUMS, report=progress).as_json()


def import_prepare(case: str) -> Any:
    """Import the `prepare` module of a case. Raises UsageError if it has none.

    Each such module has the same interface, which this file uses by name: WANTS, what each option takes; LICENCES,
    the licence of each source, by option; `prepare_data`, and `prepare_weights` if it supports --weights.
    """
    name = f"flagbench_cases.cases.{package_of(case)}.prepare"
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"{case} reads a folder of the published files, which are not prepared",
            "give it as --data FOLDER; docs/data-and-weights.md lists the files",
        )
    return importlib.import_module(name)


def check_sources(case: str, module: Any, plan: dict[str, Any]) -> None:
    """Raise UsageError for sources that the case does not support, or if none is given."""
    supported = module.WANTS
    descriptions = []
    for name in ("data", "weights", "vocabulary"):
        if name in supported:
            descriptions.append(f"--{name}: {supported[name]}")
    options = "; ".join(descriptions)
    for name in ("data", "weights", "vocabulary"):
        if plan[name] is not None and name not in supported:
            raise UsageError(f"{case} does not support --{name}", f"it takes {options}")
    if plan["data"] is None and plan["weights"] is None:
        raise UsageError("no source was given", f"{case} takes {options}")
    if plan["vocabulary"] is not None and plan["data"] is None:
        raise UsageError("--vocabulary requires --data", f"{case} takes {options}")


def convert(plan: dict[str, Any], module: Any, kind: str, progress: Progress) -> None:
    """Prepare the `data` or the `weights` of a plan, for the case's reference preset."""
    progress.begin(kind)
    preset = load_case(plan["case"])["presets"]["reference"]
    licence = licence_of(module.LICENCES, kind, plan["vocabulary"] is not None)
    with writing(plan["out"], plan["case"], kind, licence, plan["force"], progress) as writer:
        if kind == "data":
            module.prepare_data(plan["data"], plan["vocabulary"], preset, writer, progress)
        else:
            module.prepare_weights(plan["weights"], preset, writer, progress)


def licence_of(licences: dict[str, str], kind: str, with_vocabulary: bool) -> str | None:
    """Return the licence of the prepared `data` or `weights`, or None if it is not known.

    Token ids derive from the vocabulary too, so its licence is included.
    """
    licence = licences.get(kind)
    if kind != "data" or not with_vocabulary or "vocabulary" not in licences:
        return licence
    return f"{licence or 'unknown'}; vocabulary: {licences['vocabulary']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
