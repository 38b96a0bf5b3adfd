"""Real runs of the tiny presets on a processor, and every verdict on them: no honest record may be INVALID.

    python -m tests.bench.honest_runs [--runs 100] [--container IMAGE...] [--seed N] [--quick] [--out DIR] [--json]

Each run has options, a way and a condition drawn from the seed (honest_trials.py): natively or in a container of one
of the images, quiet, on one core, beside other work, stopped for a while, with half a processor, elsewhere in the
world. Each record is compared with every claim of its case, against itself as if it were published, and against an
earlier run as a baseline; a run of a series also against the one before. `compare` and the command line see it, too.

Exit code 1: a run did not end with 0, a verdict is INVALID, a record that is its own claim has another verdict than
REPRODUCED or INCONCLUSIVE (or, with too small a set, NOT_COMPARABLE), runs of a series are not comparable, or there
was an error.

With --out, runs that DIR has are not made again, and all records are judged again. `--quick`: a run of each case.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Case, Catalog, Claim, ClaimMetric
from flagbench.cli.main import run as command_line
from flagbench.errors import FlagbenchError
from flagbench.record.model import Record
from flagbench.record.read import read_record
from flagbench.report import comparison_table, verdict_table
from flagbench.verify import Verdict, VerifyResult, compare_records, verify_baseline, verify_claim

from .honest_launch import ROOT, carry_out, data_folders, images_by_case, records
from .honest_trials import CASES, NATIVE, Trial, draw

ITSELF = "itself as a claim"
PARTIAL = "counts every batch as full"
"""Why a record that is its own claim may be NOT_COMPARABLE: the tiny sets have few steps in an epoch."""
SHOWN = 8
"""Reasons of a verdict, the most common ones."""
_ANY_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


class Judge:
    """Holds records against all that they can be compared with, and keeps what should not have been."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.problems: list[str] = []
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)
        self._earlier: dict[str, Record] = {}

    def trial(self, trial: Trial, folder: Path, codes: Sequence[int]) -> int:
        """Judge all records of a trial; returns their number."""
        if any(codes):
            said = (folder / "log").read_text(errors="replace").splitlines()[-3:]
            self._problem(trial, f"ended with {codes}: {' / '.join(said)}")
            return 0
        files, found = records(folder), list[Record]()
        if len(files) != max(trial.repeat, len(codes)):
            self._problem(trial, f"{len(files)} records")
        for file in files:
            with self._no_error(trial):
                found.append(read_record(file))
                self._record(trial, found[-1])
            with self._no_error(trial):
                self._command(trial, "verify", str(file))
        if trial.repeat > 1:
            with self._no_error(trial):
                self._series(trial, found)
            self._command(trial, "verify", trial.name, "--store", str(folder / "store"))
        return len(files)

    def _record(self, trial: Trial, record: Record) -> None:
        case = self.catalog.cases[record.case]
        claims = [claim for claim in self.catalog.claims.values() if claim.case == case.name]
        for claim in claims:
            self._note(trial, "a claim", verify_claim([record], claim, case), record)
        own = verify_claim([record], claim_of(record, case, claims[0]), case)
        self._note(trial, ITSELF, own, record)
        partial = own.verdict is Verdict.NOT_COMPARABLE and PARTIAL in own.reason
        if own.verdict not in (Verdict.REPRODUCED, Verdict.INCONCLUSIVE, Verdict.INVALID) and not partial:
            self._problem(trial, f"{record.record_id} against itself: {own.conclusion}")
        other = self._earlier.get(case.name)
        if other is not None and other.run_id != record.run_id:  # a resumed run is no other run
            self._note(trial, "an earlier run", verify_baseline([record], other, case), record)
            comparison_table(compare_records(other, record, case))
        if record.status.state == "ok":
            self._earlier[case.name] = record

    def _series(self, trial: Trial, found: Sequence[Record]) -> None:
        """The second run of a series against the first, which differ in nothing but their seeds."""
        before, after = found
        result = verify_baseline([after], before, self.catalog.cases[after.case], any_seed=True)
        self._note(trial, "the run before of its series", result, after)
        if result.verdict is Verdict.NOT_COMPARABLE:
            self._problem(trial, f"a run of a series against another: {result.conclusion}")

    def _note(self, trial: Trial, against: str, result: VerifyResult, record: Record) -> None:
        verdict_table([record], result)
        self.verdicts[against][result.verdict.value] += 1
        self.reasons[f"{against}, {result.verdict.value}"][kind_of(result)] += 1
        if result.verdict is Verdict.INVALID:
            self._problem(trial, f"against {against} ({result.against.id}): {result.conclusion}")

    def _command(self, trial: Trial, *words: str) -> None:
        """The command line agrees that a record or a series is not INVALID."""
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = command_line(words)
        if code not in (0, *(int(each.exit_code) for each in Verdict if each is not Verdict.INVALID)):
            self._problem(
                trial, f"`flagbench {' '.join(words)}` ended with {code}: {said.getvalue()}{out.getvalue()}"
            )

    @contextlib.contextmanager
    def _no_error(self, trial: Trial) -> Iterator[None]:
        """An error of any kind is a problem: these records are sound, and different runs."""
        try:
            yield
        except FlagbenchError as error:
            self._problem(trial, f"{error.message}; fix: {error.remedy}")
        except Exception as error:
            self._problem(trial, f"{type(error).__name__}: {error}")

    def _problem(self, trial: Trial, what: str) -> None:
        self.problems.append(f"{trial.name}: {what}")
        print(f"honest_runs: {trial.describe()}\n    {what}", file=sys.stderr, flush=True)


def claim_of(record: Record, case: Case, like: Claim) -> Claim:
    """A claim that publishes what the record says, so that all that can be doubted is looked at."""
    conditions = {name: record.conditions.get(name) for name in like.conditions}
    held = {spec.name: record.metric(spec.held_by or spec.name) for spec in case.metrics}
    metrics = [
        ClaimMetric(name, found.value, found.unit, found.scope, None, None, None)
        for name, found in held.items()
        if found is not None
    ]
    return dataclasses.replace(like, id=record.record_id, conditions=conditions, metrics=tuple(metrics), anomalies=())


def kind_of(result: VerifyResult) -> str:
    """A reason without its numbers and names of records; of conditions that differ, the names."""
    if result.verdict is Verdict.NOT_COMPARABLE and PARTIAL in result.reason:
        return f"{result.gate} {PARTIAL}"
    if result.verdict is Verdict.NOT_COMPARABLE:
        return ", ".join(sorted({clause.partition(" is ")[0] for clause in result.reason.split("; ")}))
    reason = result.reason
    for record_id in result.records:
        reason = reason.replace(record_id, "ID")
    clauses = _ANY_NUMBER.sub("#", reason).split("; ")
    return "; ".join(clauses[1:] or clauses)


def main() -> int:
    """Make the runs that are not there yet, judge all; 1 if anything is wrong."""
    parser = argparse.ArgumentParser("python -m tests.bench.honest_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument(
        "--container", nargs="+", default=[], metavar="IMAGE", help="images of cases on the cpu stack"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a run of each case")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the runs there, and make only missing ones")
    parser.add_argument("--python", metavar="FILE", help="of native runs: one with an older torch, as in some images")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    images = images_by_case(options.container)
    with contextlib.ExitStack() as stack:
        out = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = len(CASES) if options.quick else options.runs
        trials = [draw(options.seed, number, sorted(images)) for number in range(runs)]
        judge = Judge(load_catalog(ROOT / "manifests"))
        counted, total = Counter[str](), 0
        folders = data_folders(out / "data")
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        waiting = [pool.submit(ended, trial, out, folders, images, options.python) for trial in trials]
        stack.callback(pool.shutdown, cancel_futures=True)
        for trial, future in zip(trials, waiting):
            codes = future.result()
            print(f"honest_runs: {trial.number + 1}/{runs} {trial.describe()}", file=sys.stderr, flush=True)
            total += judge.trial(trial, out / trial.name, codes)
            counted[f"{'native' if trial.way == NATIVE else 'in a container'}, {trial.condition}"] += 1
    report(judge, counted, total, as_json=options.json)
    return int(bool(judge.problems))


def ended(trial: Trial, out: Path, folders: Any, images: Any, python: str | None) -> list[int]:
    """The exit codes of a trial, which is carried out unless its folder below `out` has them."""
    folder = out / trial.name
    done = folder / "ended.json"
    if done.is_file():
        kept = json.loads(done.read_text())
        if kept["trial"] != json.loads(trial.to_json()):
            sys.exit(f"{folder} is of another seed, or of other images: give another folder, or the same options")
        return list(kept["codes"])
    if folder.exists():  # it was interrupted
        shutil.rmtree(folder)
    codes = carry_out(trial, folder, folders.get(trial.data), images.get(trial.case), python)
    done.write_text(json.dumps({"trial": json.loads(trial.to_json()), "codes": codes}))
    return codes


def report(judge: Judge, counted: Counter[str], total: int, *, as_json: bool) -> None:
    """How many runs of each kind there were, the verdicts with their reasons, and what is wrong."""
    if as_json:
        found = {"runs": counted, "records": total, "verdicts": judge.verdicts, "reasons": judge.reasons}
        print(json.dumps({**found, "problems": judge.problems}, indent=1))
        return
    print(f"honest_runs: {counted.total()} runs, {total} records")
    for kind, count in sorted(counted.items()):
        print(f"honest_runs: {count:4} {kind}")
    for against, verdicts in judge.verdicts.items():
        print(f"honest_runs: against {against}: {', '.join(f'{k} {n}' for k, n in verdicts.most_common())}")
        for verdict in verdicts:
            for reason, count in judge.reasons[f"{against}, {verdict}"].most_common(SHOWN):
                print(f"    {count:4} {verdict}: {reason}")
    print(f"honest_runs: {len(judge.problems)} problems" + "".join(f"\n    {each}" for each in judge.problems))


if __name__ == "__main__":
    sys.exit(main())
