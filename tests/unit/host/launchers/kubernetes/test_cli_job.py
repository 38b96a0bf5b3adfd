"""`flagbench job` prints a job to apply, and checks one that a person edited."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.read import parse_documents
from flagbench.launchers.kubernetes.schemas import schemas_installed

DOCS = Path(__file__).parents[5] / "docs" / "kubernetes.md"
JOB = "job distilbert:cpu --for kubernetes --nodes 2 --gpus 2"
pytestmark = pytest.mark.usefixtures("no_kubectl")

Flagbench = Callable[..., Any]


def test_yaml_to_apply_under_the_command_that_made_it(flagbench: Flagbench) -> None:
    code, text, _ = flagbench(f"{JOB} --set dropout=0.5", "--env", "NOTE=it's $HOME", "--data-pvc", "d:a b")
    assert code == 0
    assert text.startswith("# Made by flagbench ")
    assert text.endswith("\n")
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["Service", "Job"]
    again = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert again[0] == "flagbench"
    assert flagbench("", *again[1:])[:2] == (0, text)


def test_warnings_are_on_stderr_and_beside_the_job(flagbench: Flagbench) -> None:
    ended = flagbench(f"{JOB} --json")
    assert (ended.json["kind"], ended.json["apiVersion"]) == ("List", "v1")
    assert check_documents(ended.json["items"]) == []
    assert [line.partition(":")[0] for line in ended.err.splitlines()] == ["warning", "warning"]
    assert flagbench(f"{JOB} --registry r.io/bench --out-pvc results").err == ""


def test_two_runs_have_names_of_their_own(flagbench: Flagbench) -> None:
    jobs = [flagbench(f"{JOB} --json").json["items"][1] for _ in range(2)]
    assert jobs[0]["metadata"]["name"] != jobs[1]["metadata"]["name"]


def test_out_writes_a_file_and_nothing_on_stdout(tmp_path: Path, flagbench: Flagbench) -> None:
    path = tmp_path / "job.yaml"
    assert flagbench(f"{JOB} --out {path}")[:2] == (0, "")
    checked = flagbench(f"job --check {path}")
    assert (checked.code, len(checked.out.splitlines())) == (0, 1)
    refused = flagbench(f"{JOB} --out {tmp_path}")
    assert (refused.code, str(tmp_path) in refused.err) == (2, True)


def test_check_names_file_document_field_and_remedy(tmp_path: Path, flagbench: Flagbench) -> None:
    path = tmp_path / "job.yaml"
    flagbench(f"{JOB} --name fb --out {path}")
    path.write_text(path.read_text().replace("backoffLimit: 0", "backoffLimit: 4"), encoding="utf-8")
    code, out, _ = flagbench(f"job --check {path}")
    problem, summary = out.splitlines()
    assert code == 2
    assert problem.startswith(f"{path}: Job fb: spec.backoffLimit: is 4")
    assert summary.startswith(f"{path}: 1 problem")


def test_check_for_a_script_reads_stdin(flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Service\nmetadata: {name: a}\n")))
    ended = flagbench("job --check - --json")
    printed = ended._replace(code=0).json
    assert (ended.code, printed["file"], printed["server"]["validated"]) == (2, "stdin", False)
    assert bool(printed["schemas"]) == schemas_installed()
    assert set(printed["problems"][0]) == {"document", "field", "message", "remedy"}


def test_without_the_schemas_or_a_server_the_check_says_so(
    tmp_path: Path, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    flagbench(f"{JOB} --out {path}")
    path.write_text(path.read_text().replace("IfNotPresent", "Sometimes"), encoding="utf-8")
    monkeypatch.setattr("flagbench.launchers.kubernetes.schemas.find_spec", lambda name: None)
    code, out, err = flagbench(f"job --check {path}")
    assert (code, "Kubernetes" in out) == (0, False)
    assert "flagbench[lint]" in err
    assert "not validated by a server" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "CASE:STACK"),
        ("distilbert:cpu", "--for"),
        ("distilbert:cpu --check x", "CASE:STACK"),
        ("--check x --nodes 1", "--nodes"),
        ("--check x --json --set a=1", "--set"),
        ("--check x --out y", "--out"),
        ("--check /nonexistent/x", "/nonexistent/x"),
        ("distilbert:cpux --for kubernetes", "'cpux'"),
        ("distilbert:cpu --for kubernetes --env TOKEN=x", "--env TOKEN"),
        ("distilbert:cpu --for kubernetes --template /nonexistent", "/nonexistent"),
        ("distilbert:cpu --for kubernetes --submit --out x", "--out"),
    ],
)
def test_usage_errors(words: str, named: str, flagbench: Flagbench) -> None:
    code, out, err = flagbench(f"job {words}")
    assert (code, out) == (2, "")
    assert named in err
    assert "fix: " in err


def test_every_command_of_the_page_makes_a_good_job(flagbench: Flagbench) -> None:
    commands = re.findall(r"^flagbench (job .*?)(?: > \S+)?$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        if "--check" not in command:
            code, out, _ = flagbench("", *shlex.split(command))
            assert code == 0, command
            assert check_documents(parse_documents(out, "stdout")) == []
