"""Each field by itself: words from a fixed list, names, labels, quantities, which schemas take as any string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.problems import EACH, Document, Problem, as_mapping, shown
from flagbench.schema import nearest

Pattern = tuple[str | int, ...]

POD: Pattern = ("spec", "template", "spec")
_CONTAINERS: tuple[Pattern, ...] = ((*POD, "containers", EACH), (*POD, "initContainers", EACH))
_RULES: Pattern = ("spec", "podFailurePolicy", "rules", EACH)
EXPRESSIONS: Pattern = (
    *POD, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms", EACH, "matchExpressions", EACH,
)  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost", "Unconfined")

WORDS: dict[str, dict[Pattern, tuple[str, ...]]] = {
    "Job": {
        ("spec", "completionMode"): ("Indexed", "NonIndexed"),
        ("spec", "podReplacementPolicy"): ("Failed", "TerminatingOrFailed"),
        (*_RULES, "action"): ("Ignore", "FailJob", "FailIndex", "Count"),
        (*_RULES, "onExitCodes", "operator"): ("In", "NotIn"),
        (*_RULES, "onPodConditions", EACH, "status"): ("True", "False", "Unknown"),
        # A pod's Always is not a Job's.
        (*POD, "restartPolicy"): ("Never", "OnFailure"),
        (*POD, "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        (*POD, "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
        (*POD, "tolerations", EACH, "operator"): ("Exists", "Equal"),
        (*POD, "tolerations", EACH, "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
        (*POD, "volumes", EACH, "emptyDir", "medium"): ("Memory", "HugePages", ""),
        (*POD, "securityContext", "seccompProfile", "type"): _PROFILES,
        (*EXPRESSIONS, "operator"): ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
        **{
            (*container, *field): words
            for container in _CONTAINERS
            for field, words in (
                (("imagePullPolicy",), ("Always", "IfNotPresent", "Never")),
                (("terminationMessagePolicy",), ("File", "FallbackToLogsOnError")),
                (("securityContext", "seccompProfile", "type"), _PROFILES),
            )
        },
    },
    "CronJob": {("spec", "concurrencyPolicy"): ("Allow", "Forbid", "Replace")},
    "Service": {
        ("spec", "type"): ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
        ("spec", "sessionAffinity"): ("None", "ClientIP"),
        ("spec", "ipFamilyPolicy"): ("SingleStack", "PreferDualStack", "RequireDualStack"),
        ("spec", "ports", EACH, "protocol"): ("TCP", "UDP", "SCTP"),
    },
}
"""Fields that take one of a few words, by kind of document."""

NAMES: tuple[tuple[Pattern, Callable[[str], str | None]], ...] = (
    (("metadata", "namespace"), syntax.label_fault),
    ((*POD, "subdomain"), syntax.label_fault),
    ((*POD, "hostname"), syntax.label_fault),
    ((*POD, "containers", EACH, "name"), syntax.label_fault),
    ((*POD, "initContainers", EACH, "name"), syntax.label_fault),
    ((*POD, "volumes", EACH, "name"), syntax.label_fault),
    ((*POD, "volumes", EACH, "persistentVolumeClaim", "claimName"), syntax.subdomain_fault),
    ((*POD, "imagePullSecrets", EACH, "name"), syntax.subdomain_fault),
    ((*POD, "containers", EACH, "envFrom", EACH, "secretRef", "name"), syntax.subdomain_fault),
    ((*POD, "containers", EACH, "env", EACH, "name"), syntax.variable_fault),
    ((*POD, "containers", EACH, "volumeMounts", EACH, "subPath"), syntax.subpath_fault),
    ((*EXPRESSIONS, "key"), syntax.key_fault),
    ((*EXPRESSIONS, "values", EACH), syntax.label_value_fault),
    ((*POD, "tolerations", EACH, "key"), syntax.key_fault),
)
"""Fields that are names of some kind, each with its rule."""

LABELS: tuple[Pattern, ...] = (
    ("metadata", "labels"),
    ("spec", "selector"),
    ("spec", "template", "metadata", "labels"),
    (*POD, "nodeSelector"),
    *((*POD, "affinity", kind, "requiredDuringSchedulingIgnoredDuringExecution", EACH, "labelSelector", "matchLabels")
      for kind in ("podAffinity", "podAntiAffinity")),
)  # fmt: skip
ANNOTATIONS: tuple[Pattern, ...] = (("metadata", "annotations"), ("spec", "template", "metadata", "annotations"))
QUANTITIES: tuple[Pattern, ...] = (
    (*POD, "volumes", EACH, "emptyDir", "sizeLimit"),
    *((*container, "resources", side, EACH) for container in _CONTAINERS for side in ("requests", "limits")),
)


def check_fields(document: Document) -> Iterator[Problem]:
    """Every field of a Service or a Job that has a value no cluster takes."""
    yield from _check_name(document)
    for pattern, words in WORDS.get(document.kind, {}).items():
        for path, value in document.each(*pattern):
            if value is not None and value not in words:
                yield document.problem(path, f"{shown(value)} is not a value of this field", _hint(value, words))
    if document.kind not in ("Job", "Service"):
        return
    for pattern, rule in NAMES:
        for path, value in document.each(*pattern):
            if isinstance(value, str) and (fault := rule(value)):
                yield document.problem(path, f"{shown(value)} {fault}", "give another name")
    yield from _check_keys(document)
    for pattern in QUANTITIES:
        for path, value in document.each(*pattern):
            if value is not None and syntax.quantity(value) is None:
                yield document.problem(path, f"{shown(value)} is no quantity", "write a number like 8, 500m or 96Gi")


def _hint(value: Any, words: tuple[str, ...]) -> str:
    """What was meant, where that can be told: often only the capitals are wrong."""
    alike = [word for word in words if str(value).lower() == word.lower()]
    meant = alike[0] if alike else nearest(str(value), words)
    return f"did you mean {meant}?" if meant else f"write one of: {', '.join(filter(None, words))}"


def _check_name(document: Document) -> Iterator[Problem]:
    rule = syntax.label_fault if document.kind == "Service" else syntax.subdomain_fault
    if not document.name:
        yield document.problem(("metadata", "name"), "the document has no name", "name it")
    elif fault := rule(document.name):
        yield document.problem(("metadata", "name"), f"{shown(document.name)} {fault}", "give another name")


def _check_keys(document: Document) -> Iterator[Problem]:
    for pattern in (*LABELS, *ANNOTATIONS):
        for path, labels in document.each(*pattern):
            for key, value in as_mapping(labels).items():
                if fault := syntax.key_fault(key):
                    yield document.problem((*path, key), f"the key {shown(key)} {fault}", "give another key")
                if pattern in LABELS and isinstance(value, str) and (fault := syntax.label_value_fault(value)):
                    yield document.problem((*path, key), f"{shown(value)} {fault}", "give another value")
