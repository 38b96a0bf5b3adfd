"""What a benchmark needs of a job beyond a valid document, and what no server can know.

Nodes, deadline, devices, rendezvous, exit codes, and arguments that agree with the Job. Whether the documents are
valid is left to Kubernetes' schemas (`schemas.py`) and to a server (`server.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from flagbench.images import find_reference
from flagbench.launchers.kubernetes.options import (
    CONTAINER,
    DIGEST_VARIABLE,
    HOST_LABEL,
    MASTER_VARIABLE,
    MAX_PORT,
    NO_RESOURCE,
    RESOURCE_ANNOTATION,
    STORE_VARIABLES,
    TERMINATION_VARIABLE,
    TICKET_VARIABLE,
)
from flagbench.launchers.kubernetes.problems import Document, Problem, is_count, shown
from flagbench.launchers.kubernetes.syntax import image_fault
from flagbench.redaction import is_secret
from flagbench.schema import FieldPath

POD = ("spec", "template", "spec")
_Fixed: TypeAlias = tuple[FieldPath, tuple[object, ...], str]
"""A field, the values that it may have (None: it is left out; the first is the remedy), and why no other."""
_REPEATED = "a failed run would be repeated, and its record lost"
_NOT_FOUND = "node 0 would not be found while it starts"
_OF_JOB: tuple[_Fixed, ...] = (
    (("spec", "completionMode"), ("Indexed",), "pods are not told which node they are"),
    (("spec", "backoffLimit"), (0,), "a node that is started again cannot join the run"),
    (("spec", "backoffLimitPerIndex"), (None, 0), "a node that is started again cannot join the run"),
    (("spec", "successPolicy"), (None,), "the Job could complete though a node failed"),
    ((*POD, "restartPolicy"), ("Never",), _REPEATED),
)
_OF_FAILURE_RULE: tuple[_Fixed, ...] = (
    (("action",), ("FailJob",), _REPEATED),
    (("onExitCodes", "containerName"), (CONTAINER, None), "that container does not run the image"),
)
_OF_CONTAINER: tuple[_Fixed, ...] = (
    (("command",), (None, []), "it replaces the image's entrypoint"),
    (("restartPolicy",), (None, "Never"), _REPEATED),
    (("restartPolicyRules",), (None, []), _REPEATED),
)
_OF_SERVICE: tuple[_Fixed, ...] = (
    (("spec", "clusterIP"), ("None",), _NOT_FOUND),
    (("spec", "publishNotReadyAddresses"), (True,), _NOT_FOUND),
)


def check_documents(documents: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Everything that is wrong with the documents of one file, in their order. Never raises."""
    return list(_problems([Document(data) for data in documents]))


def _problems(documents: Sequence[Document]) -> Iterator[Problem]:
    jobs = [document for document in documents if document.kind == "Job"]
    if not jobs:
        yield Problem("the file", (), "there is no Job in it", "make one with `flagbench job CASE:STACK`")
    for job in jobs:
        yield from _check_fixed(job, (), _OF_JOB)
        yield from _check_nodes(job)
        yield from _check_end(job)
        yield from _check_rendezvous(job, documents)
        path = next((path for path, found in job.items(*POD, "containers") if found.get("name") == CONTAINER), None)
        if path is None:
            remedy = "make the job with `flagbench job`"
            yield job.problem((*POD, "containers"), f"there is no container called {CONTAINER}", remedy)
            continue
        yield from _check_fixed(job, path, _OF_CONTAINER)
        yield from _check_arguments(job, path)
        yield from _check_devices(job, path)
        yield from _check_variables(job, path)
        yield from _check_written(job, path)
        yield from _check_store(job, path)


def _check_fixed(document: Document, within: FieldPath, fields: Iterable[_Fixed]) -> Iterator[Problem]:
    for path, allowed, why in fields:
        found = document.at(*within, *path)
        if not any(type(found) is type(value) and found == value for value in allowed):
            remedy = "leave it out" if allowed[0] is None else "write " + json.dumps(allowed[0]).strip('"')
            yield document.problem((*within, *path), f"is {shown(found)}: {why}", remedy)


def _check_nodes(job: Document) -> Iterator[Problem]:
    """As many pods as nodes, all at once, each on a node of its own and told which one it is."""
    completions, parallelism = job.at("spec", "completions"), job.at("spec", "parallelism")
    if not is_count(completions, 1):
        yield job.problem(("spec", "completions"), f"is {shown(completions)}", "write the number of nodes")
    elif completions != parallelism:
        yield job.problem(
            ("spec", "parallelism"),
            f"is {shown(parallelism)} and completions {completions}: the nodes of a run wait for each other",
            "write the number of nodes in both",
        )
    rules = (*POD, "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    apart = any(rule.get("topologyKey") == HOST_LABEL for _, rule in job.items(*rules))
    if not apart and is_count(completions, 2):
        yield job.problem(rules[:-1], "two pods may share a node", f"add a rule with topologyKey: {HOST_LABEL}")
    if job.at(*POD, "nodeName") and is_count(completions, 2):
        yield job.problem((*POD, "nodeName"), "puts every pod on one node", "leave it out")


def _check_end(job: Document) -> Iterator[Problem]:
    """One attempt, which ends in any case; its exit code is final."""
    if not is_count(job.at("spec", "activeDeadlineSeconds"), 1):
        yield job.problem(
            ("spec", "activeDeadlineSeconds"), "nothing ends a job that hangs", "write a number of seconds"
        )
    grace = job.at(*POD, "terminationGracePeriodSeconds")
    if grace is not None and not is_count(grace, 1):
        what = f"is {shown(grace)}: a run that is ended could not write its record"
        yield job.problem((*POD, "terminationGracePeriodSeconds"), what, "write 30")
    for path, rule in job.items("spec", "podFailurePolicy", "rules"):
        if "onExitCodes" in rule:
            yield from _check_fixed(job, path, _OF_FAILURE_RULE)


def _check_rendezvous(job: Document, documents: Sequence[Document]) -> Iterator[Problem]:
    """Pods find node 0 by its name under the headless Service, before it is ready."""
    policy = job.at(*POD, "dnsPolicy") or "ClusterFirst"
    # On the host's network ClusterFirst means the node's own resolver.
    unusable = ("Default", "ClusterFirst") if job.at(*POD, "hostNetwork") is True else ("Default",)
    if policy in unusable and is_count(job.at("spec", "completions"), 2):
        what = f"is {shown(policy)}: the pods would not ask the cluster's DNS for node 0"
        yield job.problem((*POD, "dnsPolicy"), what, "write ClusterFirstWithHostNet")
    subdomain = job.at(*POD, "subdomain")
    services = [found for found in documents if found.kind == "Service" and found.name and found.name == subdomain]
    if not services:
        what = f"is {shown(subdomain)}, which is not a Service of this file: no pod would find another"
        yield job.problem((*POD, "subdomain"), what, "write the name of the headless Service")
    set_by_controller = {"batch.kubernetes.io/job-name": job.name, "job-name": job.name}
    labels = {**job.mapping("spec", "template", "metadata", "labels"), **set_by_controller}
    for service in services:
        yield from _check_fixed(service, (), _OF_SERVICE)
        selector = service.mapping("spec", "selector")
        if not selector or not selector.items() <= labels.items():
            what = f"{shown(dict(selector))} does not select the pods of {job.name}"
            yield service.problem(("spec", "selector"), what, "write labels that the pods have")
        if service.at("metadata", "namespace") != job.at("metadata", "namespace"):
            what = f"is not that of the Job, {shown(job.at('metadata', 'namespace'))}"
            yield service.problem(("metadata", "namespace"), what, "put both into one namespace")


def _check_arguments(job: Document, container: FieldPath) -> Iterator[Problem]:
    """What the image is told: which run, how many nodes, and to end before the cluster ends it."""
    path = (*container, "args")
    given = _arguments(job.at(*path))
    for option in ("--nodes", "--gpus", "--run-id"):
        if option not in given:
            yield job.problem(path, f"{option} is missing", "make a new job with `flagbench job`")
    nodes, completions = given.get("--nodes"), job.at("spec", "completions")
    if nodes is not None and nodes != str(completions):
        what = f"--nodes is {nodes} and completions {shown(completions)}"
        yield job.problem(path, what, "write the same in both")
    minutes, of_pod = given.get("--max-minutes", ""), job.at(*POD, "activeDeadlineSeconds")
    deadlines = [job.at("spec", "activeDeadlineSeconds"), *([] if of_pod is None else [of_pod])]
    seconds = float(minutes) * 60 if re.fullmatch(r"\d+(\.\d*)?", minutes) else 0
    if not seconds or not all(is_count(deadline) and seconds < deadline for deadline in deadlines):
        what = f"--max-minutes is {minutes or 'missing'}: the cluster would end the run first and delete its log"
        yield job.problem(path, what, "write --max-minutes=M, well before activeDeadlineSeconds")


def _check_devices(job: Document, container: FieldPath) -> Iterator[Problem]:
    """As many devices as processes, of the resource that the Job says its devices are."""
    gpus = _arguments(job.at(*container, "args")).get("--gpus")
    resource = job.at("metadata", "annotations", RESOURCE_ANNOTATION)
    if not isinstance(resource, str):
        where = ("metadata", "annotations")
        yield job.problem(where, f"{RESOURCE_ANNOTATION} is missing", "name the resource of the devices, or none")
    elif resource != NO_RESOURCE and gpus is not None:
        path = (*container, "resources", "limits", resource)
        if str(job.at(*path)) != gpus:
            yield job.problem(path, f"is {shown(job.at(*path))} and --gpus {gpus}", "write the same in both")


def _check_variables(job: Document, container: FieldPath) -> Iterator[Problem]:
    """Where node 0 listens, what the record says of the image, and no secrets."""
    path = (*container, "env")
    image = job.at(*container, "image")
    if fault := image_fault(image) if isinstance(image, str) else "is missing":
        yield job.problem((*container, "image"), f"{shown(image)} {fault}", "name it by a fixed tag or by a digest")
    values = {str(entry.get("name")): str(entry.get("value", "")) for _, entry in job.items(*path)}
    host = re.escape(f"{job.name}-0.{job.at(*POD, 'subdomain')}") + r"(\.[a-z0-9.-]+)?"
    master = values.get(MASTER_VARIABLE)
    found = re.fullmatch(rf"{host}:([1-9][0-9]{{0,4}})", master or "")
    needed = master is not None or is_count(job.at("spec", "completions"), 2)
    if needed and (found is None or int(found[2]) > MAX_PORT):
        what = f"{MASTER_VARIABLE} is {shown(master)}, which is not where node 0 listens"
        yield job.problem(path, what, f"write {job.name}-0.{job.at(*POD, 'subdomain')}:29400")
    reference = find_reference(image) if isinstance(image, str) else None
    digest = reference.digest if reference else None
    log = job.at(*container, "terminationMessagePath") or "/dev/termination-log"
    for name, wanted in ((DIGEST_VARIABLE, digest), (TERMINATION_VARIABLE, log)):
        if name in values and values[name] != wanted:
            yield job.problem(path, f"{name} is {shown(values[name])}, not {shown(wanted)}", "write the same in both")
    for name, value in values.items():
        # The host of node 0 is the job's name, which may well look like a key: sk-learn-nightly.
        if value and name != MASTER_VARIABLE and is_secret(name, value):
            yield _secret(job, path, name)


def _check_store(job: Document, container: FieldPath) -> Iterator[Problem]:
    """One place for the record, and credentials for it from a Secret."""
    path = (*container, "env")
    entries = {str(entry.get("name")): entry for _, entry in job.items(*path)}
    store = _arguments(job.at(*container, "args")).get("--store")
    ticket = entries.get(TICKET_VARIABLE)
    if ticket is not None:
        if not _secret_key(ticket, TICKET_VARIABLE):
            what = f"{TICKET_VARIABLE} does not come from a Secret of that key"
            yield job.problem(path, what, "make the job with `flagbench job --ticket-secret NAME`")
        if store is not None:
            what = f"--store and {TICKET_VARIABLE} contradict each other"
            yield job.problem((*container, "args"), what, "leave one of them out")
    if store is None or ticket is not None:
        return
    if not store.lower().startswith("s3://"):
        what = f"--store is {shown(store)}: a pod's folders end with it"
        yield job.problem((*container, "args"), what, "write s3://BUCKET/PREFIX")
    given = [name for name in STORE_VARIABLES if name in entries]
    elsewhere = job.at(*container, "envFrom") or job.at(*POD, "serviceAccountName")
    if not given and not elsewhere:
        what = "there are no credentials for --store"
        yield job.problem(path, what, "make the job with `flagbench job --store-secret NAME`")
    for name in STORE_VARIABLES:
        if given and not _secret_key(entries.get(name, {}), name):
            what = f"{name} does not come from a Secret of that key"
            yield job.problem(path, what, "make the job with `flagbench job --store-secret NAME`")


def _secret_key(entry: Mapping[str, Any], key: str) -> bool:
    """Whether a variable has its value from that key of a Secret."""
    source = entry.get("valueFrom")
    found = source.get("secretKeyRef") if isinstance(source, dict) else None
    return isinstance(found, dict) and found.get("key") == key and bool(found.get("name"))


def _check_written(job: Document, container: FieldPath) -> Iterator[Problem]:
    """No secret in what is written beside the variables: arguments, labels and annotations."""
    for part in ("command", "args"):
        texts = _texts(job.at(*container, part))
        for word, after in zip(texts, [*texts[1:], ""], strict=False):
            if is_secret("", word) or (
                word.startswith("--") and "=" not in word and is_secret("", f"{word} {after}")
            ):
                # Only options are named: any other word may be the secret itself.
                named = word.partition("=")[0] if word.startswith("--") else "a word"
                yield _secret(job, (*container, part), named)
    for metadata in (("metadata",), ("spec", "template", "metadata")):
        for part in ("labels", "annotations"):
            for key, value in job.mapping(*metadata, part).items():
                if isinstance(value, str) and is_secret("", f"{key}={value}"):
                    yield _secret(job, (*metadata, part), str(key))


def _secret(job: Document, path: FieldPath, name: str) -> Problem:
    what = f"{name} looks like a secret, which everyone who may read the job could read"
    return job.problem(path, what, "keep it in a Secret, and name that under envFrom")


def _texts(words: Any) -> list[str]:
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


def _arguments(words: Any) -> dict[str, str]:
    """The options among the words of a command line, `--name=value` or `--name value`; the last one counts."""
    texts, found = _texts(words), {}
    for index, word in enumerate(texts):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = value if equals or index + 1 == len(texts) else texts[index + 1]
    return found
