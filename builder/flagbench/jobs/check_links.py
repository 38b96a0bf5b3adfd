"""What ties the pods of a job together: the Service, the name of node 0, and the number of nodes they are told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.check_fields import EXPRESSIONS
from flagbench.jobs.options import HOST_LABEL, MASTER_VARIABLE
from flagbench.jobs.problems import EACH, Document, Problem, as_list, as_mapping, is_count, shown
from flagbench.schema import FieldPath

_POD = ("spec", "template", "spec")
_PRODUCT = "/gpu.product"
"""How the label ends by which the operators of several vendors tell models of device apart."""


def check_links(job: Document, documents: Sequence[Document]) -> Iterator[Problem]:
    """What is wrong between a Job and the other documents of its file."""
    subdomain = job.at(*_POD, "subdomain")
    services = [d for d in documents if d.kind == "Service" and d.name and d.name == subdomain]
    if not isinstance(subdomain, str) or not services:
        yield job.problem(
            (*_POD, "subdomain"),
            f"is {shown(subdomain)}, which is not the name of a Service in the file: no pod would find another",
            "write the name of the headless Service",
        )
    for service in services:
        yield from _check_service(job, service)
    yield from _check_apart(job)
    yield from _check_alike(job)
    for index, container in enumerate(as_list(job.at(*_POD, "containers"))):
        path = (*_POD, "containers", index)
        yield from _check_master(job, path, as_mapping(container), str(subdomain))


def pod_labels(job: Document) -> Mapping[str, Any]:
    """The labels of a job's pods, those included that the Job controller sets."""
    own = {"batch.kubernetes.io/job-name": job.name, "job-name": job.name}
    return {**job.mapping("spec", "template", "metadata", "labels"), **own}


def _check_service(job: Document, service: Document) -> Iterator[Problem]:
    if service.at("spec", "clusterIP") != "None":
        yield service.problem(
            ("spec", "clusterIP"), "the Service is not headless: pods have no names of their own", "write None"
        )
    if service.at("spec", "publishNotReadyAddresses") is not True:
        yield service.problem(
            ("spec", "publishNotReadyAddresses"),
            "node 0 is not found before it is ready, and it is not ready before it is found",
            "write true",
        )
    for path, port in service.each("spec", "ports", EACH, "port"):
        if not is_count(port, 1) or port > syntax.MOST_PORT:
            yield service.problem(path, f"{shown(port)} is no port", f"write a number from 1 to {syntax.MOST_PORT}")
    selector, labels = service.mapping("spec", "selector"), pod_labels(job)
    wrong = [key for key, value in selector.items() if labels.get(key) != value]
    if not selector or wrong:
        what = f"the pods of {job.name} do not carry {wrong[0]}={selector[wrong[0]]}" if wrong else "selects no pods"
        yield service.problem(("spec", "selector"), what, "write app.kubernetes.io/name: flagbench")
    if service.namespace != job.namespace:
        yield service.problem(
            ("metadata", "namespace"), f"the Job is in {shown(job.namespace)}", "put both into one namespace"
        )


def _check_apart(job: Document) -> Iterator[Problem]:
    apart = False
    for path, key, own in _pod_rules(job, "podAntiAffinity"):
        apart = apart or key == HOST_LABEL
        if not own:
            yield job.problem(
                (*path, "labelSelector"),
                "does not fit this job's own pods, so two of them may share a node",
                f"write batch.kubernetes.io/job-name: {job.name}",
            )
    if not apart and is_count(job.at("spec", "completions"), 2):
        yield job.problem(
            (*_POD, "affinity", "podAntiAffinity"),
            "nothing keeps two pods off one node",
            f"write a rule for batch.kubernetes.io/job-name: {job.name} with topologyKey: {HOST_LABEL}",
        )


def _check_alike(job: Document) -> Iterator[Problem]:
    """Nodes that may be of several models have to be tied to each other."""
    if not is_count(job.at("spec", "completions"), 2):
        return
    tied = [key for _, key, own in _pod_rules(job, "podAffinity") if own]
    for path, expression in job.each(*EXPRESSIONS):
        key, values = as_mapping(expression).get("key"), as_list(as_mapping(expression).get("values"))
        if str(key).endswith(_PRODUCT) and len(values) > 1 and key not in tied:
            yield job.problem(
                (*path, "values"),
                "one pod may run on another model of device than the next",
                f"write one, or a podAffinity to batch.kubernetes.io/job-name: {job.name} with topologyKey: {key}",
            )


def _pod_rules(job: Document, kind: str) -> Iterator[tuple[FieldPath, Any, bool]]:
    """The required rules of podAffinity or podAntiAffinity: path, topologyKey, whether it fits the job's own pods."""
    labels = pod_labels(job)
    for path, term in job.each(*_POD, "affinity", kind, "requiredDuringSchedulingIgnoredDuringExecution", EACH):
        wanted = as_mapping(as_mapping(as_mapping(term).get("labelSelector")).get("matchLabels"))
        yield path, as_mapping(term).get("topologyKey"), all(labels.get(key) == wanted[key] for key in wanted)


def _check_master(
    job: Document, path: tuple[str | int, ...], container: Mapping[str, Any], subdomain: str
) -> Iterator[Problem]:
    completions = job.at("spec", "completions")
    for index, entry in enumerate(as_list(container.get("env"))):
        variable = as_mapping(entry)
        if variable.get("name") == MASTER_VARIABLE:
            where = variable.get("value")
            host = re.escape(f"{job.name}-0.{subdomain}") + r"(\.[a-z0-9.-]+)?"
            match = re.fullmatch(rf"{host}:(?P<port>[1-9][0-9]{{0,4}})", where) if isinstance(where, str) else None
            if match is None or int(match["port"]) > syntax.MOST_PORT:
                yield job.problem(
                    (*path, "env", index, "value"),
                    f"{shown(where)} is not where node 0 listens",
                    f"write {job.name}-0.{subdomain}:29400",
                )
            return
    # A container without --nodes is not ours.
    if is_count(completions, 2) and any(str(word).startswith("--nodes") for word in as_list(container.get("args"))):
        yield job.problem(
            (*path, "env"),
            f"{MASTER_VARIABLE} is missing: no node would find node 0",
            "set it to its HOST:PORT",
        )
