"""What flagbench answers from its own manifests and shipped records: a change that should keep answers keeps these.

`answers.json` has the ids of rules, exit codes, the keys of `--json`, the verdicts on the records of docs/measured
and docs/verdict, and the sha256 of longer answers: JSON Schemas, `list claims --json` and `expect --json`. Where an
answer changes on purpose, update the file and say why in the commit:

    PYTHONPATH=tests python tests/replay/test_answers.py --update
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.expect import answer as expect
from flagbench.history.verdicts import CACHED_AS
from flagbench.manifests.rows import published_rows
from flagbench.verdict.rules import RULES
from flagbench_core.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "answers.json"
REPLAY = Path(__file__).parent / "08a01ae"
RECORDS = [*sorted((ROOT / "docs" / "measured").glob("*.json")), ROOT / "docs" / "verdict" / "record.json"]
COMMANDS = (
    "list",
    "expect glm --on a100-sxm4-40gb",
    "plan llama3-8b:cuda13 --gpus 8 --mem 80",
    "verify docs/measured/h100-distilbert.json",
    "verify docs/measured/h100-distilbert.json --explain",
    "verify docs/measured/h100-roofs-mamf-bf16.json --baseline docs/measured/h100-roofs-mamf-bf16-2.json",
    "compare docs/measured/h100-roofs-mamf-bf16.json docs/measured/h100-roofs-mamf-bf16-2.json",
    "compare docs/measured/h100-distilbert.json docs/measured/h100-distilbert.json",
    "results ls",
    "results show",
    "results show docs/measured/h100-distilbert.json",
    "results push docs/measured/h100-distilbert.json",
    "results rm last --yes",
    "store doctor",
    "bundle verify tests/replay/08a01ae/reproduced.tar.gz",
    "render glm:cpu",
    "manifests compile --check",
)
"""Commands whose `--json` needs no device, engine or network."""


def ask(*words: str) -> tuple[int, str]:
    """The exit code and stdout of a command with --json."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(out):
        code = main.run([*words, "--json"])
        out.flush()
    return code, out.buffer.getvalue().decode("utf-8")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def keys(document: Any, path: str = "") -> set[str]:
    """The paths of all keys in a JSON document; members of a list have one path."""
    if isinstance(document, list):
        return {key for member in document for key in keys(member, f"{path}[]")}
    if not isinstance(document, dict):
        return set()
    paths = set()
    for name, member in document.items():
        paths |= {f"{path}.{name}", *keys(member, f"{path}.{name}")}
    return paths


def verdict_on(record: Path) -> dict[str, Any]:
    """What `flagbench verify` says of a shipped record; only the exit code where no claim is of its case."""
    code, text = ask("verify", str(record))
    if not text:
        return {"exit_code": code}
    verdict = json.loads(text)
    return {
        "exit_code": code,
        "verdict": verdict["verdict"],
        "qualifiers": verdict["qualifiers"],
        "against": verdict["against"]["id"],
        "findings": verdict["findings"],
        "metrics": {
            metric["name"]: [metric["verdict"], metric["ratio"] and metric["ratio"]["value"]]
            for metric in verdict["metrics"]
        },
    }


def verdicts() -> dict[str, Any]:
    return {str(path.relative_to(ROOT)): verdict_on(path) for path in RECORDS}


def cached(verdicts: dict[str, Any]) -> dict[str, Any]:
    """The number under which stores keep verdicts, and the sha256 of what they keep of the shipped records."""
    kept = {
        path: [verdict.get("verdict"), verdict.get("against"), verdict.get("metrics")]
        for path, verdict in verdicts.items()
    }
    return {"number": CACHED_AS, "verdicts": sha256(json.dumps(kept))}


def schemas() -> dict[str, str]:
    """The sha256 of each JSON Schema."""
    folder = ROOT / "manifests" / "schema"
    return {path.name: sha256(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def claims() -> dict[str, str]:
    """The sha256 of each claim in `list claims --json`, without what depends on this machine."""
    _, text = ask("list", "claims")
    rows = json.loads(text)["claims"]
    for row in rows:
        del row["this_machine"]
    return {row["id"]: sha256(json.dumps(row)) for row in rows}


def expectations() -> dict[str, str]:
    """Of each device, the sha256 of what `expect --json` answers for every case and model."""
    models = sorted({*CATALOG.cases, *(row.model for row in published_rows(CATALOG))})
    answers = {}
    for device in CATALOG.devices:
        documents = [expect.find_published(model, device, None, CATALOG).to_dict() for model in models]
        answers[device] = sha256(json.dumps(documents))
    return answers


def json_keys(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, list[str]]:
    """The keys that each command prints, in a store of their own."""
    store = shutil.copytree(REPLAY / "store", folder / "store")
    monkeypatch.setenv("FLAGBENCH_STORE", str(store))
    monkeypatch.chdir(ROOT)
    answers = {}
    for command in COMMANDS:
        _, text = ask(*command.split())
        answers[command] = sorted(keys(json.loads(text)))
    return answers


def golden(name: str) -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


def test_shipped_records_keep_their_verdicts() -> None:
    assert verdicts() == golden("verdicts")


def test_a_changed_verdict_has_a_new_number_in_the_cache() -> None:
    assert cached(golden("verdicts")) == golden("cached")


def test_schemas_are_those_on_record() -> None:
    assert schemas() == golden("schemas")


def test_rules_are_those_on_record() -> None:
    assert sorted(RULES) == golden("rules")


def test_exit_codes_are_those_on_record() -> None:
    assert {code.name: int(code) for code in ExitCode} == golden("exit_codes")


def test_claims_are_listed_as_on_record() -> None:
    assert claims() == golden("claims")


def test_expect_answers_as_on_record() -> None:
    assert expectations() == golden("expect")


def test_json_has_the_keys_on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert json_keys(monkeypatch, tmp_path) == golden("json_keys")


def update() -> None:
    """Write the answers of this version."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        answers: dict[str, Any] = {
            "verdicts": verdicts(),
            "schemas": schemas(),
            "rules": sorted(RULES),
            "exit_codes": {code.name: int(code) for code in ExitCode},
            "claims": claims(),
            "expect": expectations(),
            "json_keys": json_keys(monkeypatch, Path(folder)),
        }
    answers["cached"] = cached(answers["verdicts"])
    if answers["cached"] != golden("cached") and golden("cached")["number"] == CACHED_AS:
        sys.exit("verdicts have changed: raise CACHED_AS in history/verdicts.py, so that stores compute theirs again")
    GOLDEN.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__" and "--update" in sys.argv:
    update()
