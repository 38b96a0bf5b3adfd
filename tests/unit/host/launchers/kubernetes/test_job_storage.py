"""Where the record of a job goes: a bucket or a ticket, with credentials from a Secret and from nowhere else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.documents import job_documents, read_template
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.schemas import check_schemas

from .conftest import MANIFESTS, Documents, find

STORE = {"store": "s3://bench/lab?profile=ceph", "store_secret": "bucket"}
TICKET = {"ticket_secret": "ticket-of-run-1", "nodes": 2}
JobOf = Callable[..., Documents]


def secret_variables(documents: Documents) -> dict[str, dict[str, Any]]:
    """The variables that come from a Secret, by name."""
    entries = find(documents, "main env")
    return {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in entries if "valueFrom" in entry}


def test_the_keys_of_a_bucket_come_from_a_secret_one_by_one(job_of: JobOf) -> None:
    documents = job_of(**STORE, env=("AWS_ENDPOINT_URL=https://s3.example.com", "AWS_REGION=eu-1"))
    assert find(documents, "main args")[-1] == "--store=s3://bench/lab?profile=ceph"
    assert secret_variables(documents) == {
        "AWS_ACCESS_KEY_ID": {"name": "bucket", "key": "AWS_ACCESS_KEY_ID"},
        "AWS_SECRET_ACCESS_KEY": {"name": "bucket", "key": "AWS_SECRET_ACCESS_KEY"},
        "AWS_SESSION_TOKEN": {"name": "bucket", "key": "AWS_SESSION_TOKEN", "optional": True},
    }
    assert find(documents, "main envFrom") is None


def test_a_ticket_comes_from_a_secret_and_says_itself_where_the_record_goes(job_of: JobOf) -> None:
    documents = job_of(**TICKET)
    assert secret_variables(documents) == {"FLAGBENCH_TICKET": {"name": "ticket-of-run-1", "key": "FLAGBENCH_TICKET"}}
    assert not any(word.startswith(("--store", "--ticket")) for word in find(documents, "main args"))
    assert {"--run-id=run-1", "--nodes=2"} <= set(find(documents, "main args"))


@pytest.mark.parametrize("options", [STORE, TICKET, {**STORE, "store_secret": None, "env_from_secret": ("bucket",)}])
@pytest.mark.usefixtures("schemas")
def test_such_jobs_pass_the_schemas_and_our_own_check(job_of: JobOf, options: dict[str, Any]) -> None:
    documents = job_of(**options)
    assert check_schemas(documents) == []
    assert check_documents(documents) == []


def test_the_command_that_makes_it_again_is_whole(request_of: Callable[..., JobRequest]) -> None:
    command = request_of(**STORE).command()
    assert {"--store=s3://bench/lab?profile=ceph", "--store-secret=bucket"} <= set(command)
    assert "--out-pvc" not in " ".join(request_of(**TICKET).warnings()), "the record is stored"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"store_secret": "bucket"}, "--store"),
        ({"store": "s3://bench/lab"}, "--store-secret"),
        ({"store": "/data/store", "store_secret": "bucket"}, "--out-pvc"),
        ({"store": "file:///out", "store_secret": "bucket"}, "--out-pvc"),
        ({"store": "s3://KEY:aB3SECRETaB3@bench", "store_secret": "bucket"}, "--store"),
        ({"store": "s3://b", "store_secret": "bucket"}, "--store"),
        ({"store": "s3://bench?profile=minio", "store_secret": "bucket"}, "--store"),
        ({"store": "s3://bench", "store_secret": "Bucket"}, "--store-secret"),
        ({"ticket_secret": "a/b"}, "--ticket-secret"),
        ({**STORE, "ticket_secret": "ticket"}, "--ticket-secret"),
        ({"ticket_secret": "ticket", "store_secret": "bucket"}, "--ticket-secret"),
        ({"ticket_secret": "ticket", "run_id": None}, "--run-id"),
        ({"env": ("FLAGBENCH_TICKET={}",)}, "--env"),
        ({**STORE, "env": ("AWS_SECRET_ACCESS_KEY=aB3SECRETaB3",)}, "--env"),
    ],
)
def test_contradictions_and_missing_credentials_are_usage_errors(
    request_of: Callable[..., JobRequest], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of(**options)
    told = f"{caught.value.message} {caught.value.remedy}"
    assert (caught.value.code, named in told, "aB3SECRETaB3" in told) == (ExitCode.USAGE, True, False)


def env(change: Callable[[dict[str, Any]], None]) -> Callable[[Documents], None]:
    """Change every variable that comes from a Secret."""

    def edit(documents: Documents) -> None:
        for entry in find(documents, "main env"):
            if "valueFrom" in entry:
                change(entry)

    return edit


def args(change: Callable[[list[str]], list[str]]) -> Callable[[Documents], None]:
    """Change the arguments."""

    def edit(documents: Documents) -> None:
        main = find(documents, "main")
        main["args"] = change(main["args"])

    return edit


def written_down(entry: dict[str, Any]) -> None:
    entry.pop("valueFrom")
    entry["value"] = "x"


@pytest.mark.parametrize(
    ("options", "edit", "named"),
    [
        (STORE, env(written_down), "env"),
        (STORE, env(lambda entry: entry["valueFrom"]["secretKeyRef"].update(key="other")), "env"),
        (STORE, env(lambda entry: entry.update(name="X" + entry["name"])), "env"),
        (STORE, args(lambda words: [*words, "--store=file:///out"]), "args"),
        (TICKET, env(written_down), "env"),
        (TICKET, args(lambda words: [*words, "--store=s3://bench"]), "args"),
    ],
)
def test_what_the_check_finds_in_an_edited_job(
    job_of: JobOf, options: dict[str, Any], edit: Callable[[Documents], None], named: str
) -> None:
    documents = copy.deepcopy(job_of(**options))
    assert check_documents(documents) == []
    edit(documents)
    found = check_documents(documents)
    assert found
    assert all(problem.path[-1] == named for problem in found)


def test_certificates_come_with_a_template(request_of: Callable[..., JobRequest], tmp_path: Path) -> None:
    """As docs/kubernetes.md has it: a ConfigMap mounted by the template, and the variable that names the file."""
    template = [*yaml.safe_load_all((MANIFESTS / "kubernetes" / "job.yaml").read_text())]
    pod = next(each for each in template if each["kind"] == "Job")["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "authority", "configMap": {"name": "authority"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(template))
    asked = request_of(**STORE, template=str(file), env=("AWS_CA_BUNDLE=/etc/authority/ca.crt",))
    documents = job_documents(asked, read_template(file))
    assert {"name": "AWS_CA_BUNDLE", "value": "/etc/authority/ca.crt"} in find(documents, "main env")
    assert {"name": "authority", "mountPath": "/etc/authority", "readOnly": True} in find(
        documents, "main volumeMounts"
    )
    assert "aB3" not in json.dumps(documents)
