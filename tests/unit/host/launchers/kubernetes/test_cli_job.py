"""`flagbench job` prints a job to apply, and checks one that a person edited."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from flagbench.cli import main
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.read import parse_documents
from flagbench.launchers.kubernetes.schemas import schemas_installed

DOCS = Path(__file__).parents[5] / "docs" / "kubernetes.md"
JOB = ["job", "distilbert:cpu", "--for", "kubernetes", "--nodes", "2", "--gpus", "2"]
pytestmark = pytest.mark.usefixtures("no_kubectl")


def test_yaml_to_apply_under_the_command_that_made_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*JOB, "--set", "dropout=0.5", "--env", "NOTE=it's $HOME", "--data-pvc", "d:a b"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Made by flagbench ")
    assert text.endswith("\n")
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["Service", "Job"]
    again = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert again[0] == "flagbench"
    assert main.run(again[1:]) == 0
    assert capsys.readouterr().out == text


def test_the_command_above_a_job_repeats_what_it_resumes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["job", "llama2-7b-lora:cpu", "--for", "kubernetes", "--resume-pvc", "r:checkpoints/first"]) == 0
    text = capsys.readouterr().out
    assert "--resume-pvc=r:checkpoints/first" in shlex.split(text.splitlines()[1])
    assert "--resume=/resume" in text


def test_warnings_are_on_stderr_and_beside_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*JOB, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["kind"], document["apiVersion"]) == ("List", "v1")
    assert check_documents(document["items"]) == []
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == ["warning", "warning"]
    assert main.run([*JOB, "--registry", "r.io/bench", "--out-pvc", "results"]) == 0
    assert capsys.readouterr().err == ""


def test_two_runs_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main.run(JOB), main.run(JOB)) == (0, 0)
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert len({d["metadata"]["name"] for d in documents if d["kind"] == "Job"}) == 2
    assert {d["metadata"]["name"] for d in documents if d["kind"] == "Service"} == {"flagbench"}


def test_out_writes_a_file_and_nothing_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    assert main.run([*JOB, "--out", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert main.run(["job", "--check", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main.run([*JOB, "--out", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_check_names_file_document_field_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    main.run([*JOB, "--name", "fb", "--out", str(path)])
    path.write_text(path.read_text().replace("backoffLimit: 0", "backoffLimit: 4"), encoding="utf-8")
    assert main.run(["job", "--check", str(path)]) == 2
    problem, summary = capsys.readouterr().out.splitlines()
    assert problem.startswith(f"{path}: Job fb: spec.backoffLimit: is 4")
    assert summary.startswith(f"{path}: 1 problem")


def test_check_for_a_script_reads_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Service\nmetadata: {name: a}\n")))
    assert main.run(["job", "--check", "-", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == "stdin"
    assert bool(printed["schemas"]) == schemas_installed()
    assert printed["server"]["validated"] is False
    assert set(printed["problems"][0]) == {"document", "field", "message", "remedy"}


def test_without_the_schemas_or_a_server_the_check_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    main.run([*JOB, "--out", str(path)])
    path.write_text(path.read_text().replace("IfNotPresent", "Sometimes"), encoding="utf-8")
    monkeypatch.setattr("flagbench.launchers.kubernetes.schemas.find_spec", lambda name: None)
    assert main.run(["job", "--check", str(path)]) == 0
    printed = capsys.readouterr()
    assert "Kubernetes" not in printed.out
    assert "flagbench[lint]" in printed.err
    assert "not validated by a server" in printed.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["job"], "CASE:STACK"),
        (["job", "distilbert:cpu"], "--for"),
        (["job", "distilbert:cpu", "--check", "x"], "CASE:STACK"),
        (["job", "--check", "x", "--nodes", "1"], "--nodes"),
        (["job", "--check", "x", "--json", "--set", "a=1"], "--set"),
        (["job", "--check", "x", "--out", "y"], "--out"),
        (["job", "--check", "/nonexistent/x"], "/nonexistent/x"),
        (["job", "distilbert:cpux", "--for", "kubernetes"], "'cpux'"),
        (["job", "distilbert:cpu", "--for", "kubernetes", "--env", "TOKEN=x"], "--env TOKEN"),
        (["job", "distilbert:cpu", "--for", "kubernetes", "--template", "/nonexistent"], "/nonexistent"),
    ],
)
def test_usage_errors(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert named in printed.err
    assert "fix: " in printed.err


def test_every_command_of_the_page_makes_a_good_job(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^flagbench (job .*?)(?: > \S+)?$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        if "--check" not in command:
            assert main.run(shlex.split(command)) == 0, command
            assert check_documents(parse_documents(capsys.readouterr().out, "stdout")) == []
