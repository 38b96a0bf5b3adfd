"""`flagbench job` prints a job to apply, and checks one that a person edited."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from flagbench.cli import edge
from flagbench.jobs import check_documents
from flagbench.jobs.read import parse_documents
from flagbench.jobs.schemas import schemas_installed

DOCS = Path(__file__).parents[4] / "docs" / "kubernetes.md"
JOB = ["job", "distilbert:cpu", "--for", "kubernetes", "--nodes", "2", "--gpus", "2"]


def test_yaml_to_apply_under_the_command_that_made_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run([*JOB, "--set", "dropout=0.5", "--env", "NOTE=it's $HOME", "--data-pvc", "d:a b"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Made by flagbench ")
    assert text.endswith("\n")
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["Service", "Job"]
    again = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert again[0] == "flagbench"
    assert edge.run(again[1:]) == 0
    assert capsys.readouterr().out == text


def test_the_command_above_a_job_repeats_what_it_goes_on_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["job", "llama2-7b-lora:cpu", "--for", "kubernetes", "--resume-pvc", "r:checkpoints/first"]) == 0
    text = capsys.readouterr().out
    assert "--resume-pvc=r:checkpoints/first" in shlex.split(text.splitlines()[1])
    assert "--resume=/resume" in text


def test_warnings_are_on_stderr_and_beside_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run([*JOB, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["kind"] == "List"
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == ["warning", "warning"]
    assert edge.run([*JOB, "--registry", "r.io/bench", "--out-pvc", "results"]) == 0
    assert capsys.readouterr().err == ""


def test_two_runs_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert (edge.run(JOB), edge.run(JOB)) == (0, 0)
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert len({d["metadata"]["name"] for d in documents if d["kind"] == "Job"}) == 2
    assert {d["metadata"]["name"] for d in documents if d["kind"] == "Service"} == {"flagbench"}


def test_json_is_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run([*JOB, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["kind"], printed["apiVersion"]) == ("List", "v1")
    assert check_documents(printed["items"]) == []


def test_out_writes_a_file_and_nothing_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    assert edge.run([*JOB, "--out", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert edge.run(["job", "--check", str(path)]) == 0
    assert "no problems" in capsys.readouterr().out
    assert edge.run([*JOB, "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_check_names_file_document_field_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    edge.run([*JOB, "--name", "fb", "--out", str(path)])
    path.write_text(path.read_text().replace("backoffLimit: 0", "backoffLimit: 4"), encoding="utf-8")
    assert edge.run(["job", "--check", str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"{path}: Job fb: spec.backoffLimit: is 4: a node that is started again cannot join the run; write 0"
    )
    assert lines[1].startswith(f"{path}: 1 problem, ")


def test_check_for_a_script_reads_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Service\nmetadata: {name: a}\n")))
    assert edge.run(["job", "--check", "-", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == "stdin"
    assert bool(printed["schemas"]) == schemas_installed()
    assert printed["problems"][0] == {
        "document": "the file",
        "field": "",
        "message": "there is no Job in it",
        "remedy": "make one with `flagbench job CASE:STACK`",
    }


def test_without_the_schemas_the_check_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    edge.run([*JOB, "--out", str(path)])
    monkeypatch.setattr("flagbench.jobs.schemas.find_spec", lambda name: None)
    assert edge.run(["job", "--check", str(path)]) == 0
    printed = capsys.readouterr()
    assert "held against our own rules alone" in printed.out
    assert "flagbench[lint]" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job"], "CASE:STACK is missing"),
        (["job", "distilbert:cpu"], "--for is missing"),
        (["job", "distilbert:cpu", "--check", "x"], "--check takes a file and no image"),
        (["job", "--check", "x", "--nodes", "3"], "--nodes means nothing beside --check"),
        (["job", "--check", "x", "--nodes", "1"], "--nodes means nothing beside --check"),
        (["job", "--check", "x", "--for", "kubernetes"], "--for means nothing beside --check"),
        (["job", "--check", "x", "--json", "--set", "a=1"], "--set means nothing beside --check"),
        (["job", "--check", "x", "--image", "r.io/x:1"], "--image means nothing beside --check"),
        (["job", "--check", "x", "--out", "y"], "--out means nothing beside --check"),
        (["job", "--check", "/nonexistent/x"], "cannot be read"),
        (["job", "distilbert:cpux", "--for", "kubernetes"], "there is no stack 'cpux'"),
        (["job", "distilbert:cpu", "--for", "kubernetes", "--env", "TOKEN=x"], "looks like a secret"),
        (["job", "distilbert:cpu", "--for", "kubernetes", "--template", "/nonexistent"], "cannot be read"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "fix: " in printed.err


def test_other_targets_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["job", "distilbert:cpu", "--for", "slurm"]) == 2
    assert "'slurm' is not" in capsys.readouterr().err


DOCUMENTED = re.findall(r"^flagbench (job .*?)(?: > \S+)?$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_shows_commands() -> None:
    assert len(DOCUMENTED) >= 5


@pytest.mark.parametrize("command", [command for command in DOCUMENTED if "--check" not in command])
def test_every_command_of_the_page_makes_a_good_job(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(shlex.split(command)) == 0
    assert check_documents(parse_documents(capsys.readouterr().out, "stdout")) == []
