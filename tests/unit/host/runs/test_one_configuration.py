"""A job's request and the image resolve the same options into one configuration, or both refuse them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.manifests.fields import Precision
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Stack
from flagbench.runs.launchers.kubernetes import KubernetesRequest
from flagbench.runs.request import RunOptions
from flagbench_cases.node import cli, request
from flagbench_cases.shared.errors import UsageError
from flagbench_core.config import digest
from flagbench_core.exit_codes import ExitCode

pytestmark = pytest.mark.image

PRECISIONS: tuple[Precision | None, ...] = (None, "fp32", "tf32", "fp16", "bf16", "fp8")
PRESETS: tuple[Literal["reference", "tiny"], ...] = ("reference", "tiny")
OTHER_OPTIONS: tuple[dict[str, Any], ...] = (
    {"steps": 3},
    {"max_samples": 65},
    {"full": True},
    {"roofs": True},
    {"seed": 7},
    {"data": "synthetic"},
)
PARSER = cli.build_parser()
DRAWN = 5


def values_of(rule: Mapping[str, Any]) -> list[Any]:
    """Values of a setting: at its bounds, a step beyond them (before an excluded one), and one of another type."""
    if rule["type"] == "boolean":
        return ["true", "False", "1"]
    if "choices" in rule:
        return [*rule["choices"], "no-such-choice"]
    step = 1 if rule["type"] == "integer" else 1e-6
    values: list[Any] = ["nan"]
    for name, other in (
        ("minimum", -step),
        ("exclusive_minimum", step),
        ("maximum", step),
        ("exclusive_maximum", -step),
    ):
        if name in rule:
            values += [rule[name], rule[name] + other]
    return values


def settings_of(case: Case) -> Iterator[tuple[str, ...]]:
    """Each one alone."""
    for name, rule in case.settable.items():
        for value in values_of(rule):
            yield (f"{name}={value}",)
    yield ("no_such_setting=1",)
    if "micro_batch_size" in case.settable:
        yield ("micro_batch_size=2", "batch_size=7")


def options_of(case: Case) -> Iterator[RunOptions]:
    """Presets, precisions, and each setting with a precision in turn, on as many ranks as every layout of the case
    divides."""
    nodes = 4 if "pp" in case.presets["reference"].get("layout", {}) else 1
    for preset in PRESETS:
        for precision in PRECISIONS:
            yield RunOptions(nodes, 8, preset=preset, precision=precision)
        for number, settings in enumerate(settings_of(case)):
            for precision in (None, PRECISIONS[number % len(PRECISIONS)]):
                yield RunOptions(nodes, 8, preset=preset, precision=precision, set_=settings)
        for option in OTHER_OPTIONS:
            yield RunOptions(nodes, 8, preset=preset, **option)


def image_arguments(case: Case, options: RunOptions) -> list[str]:
    """The command line of the image, on the first node."""
    node = ["--node-rank=0", "--master=localhost"] if options.nodes > 1 else []
    return [case.name, *options.image_arguments(), *node, "--describe"]


def digest_on_host(case: Case, stack: Stack, options: RunOptions) -> str | None:
    """The digest of the configuration of a job; None where the job is refused."""
    try:
        return digest(KubernetesRequest(case, stack, options).config)
    except FlagbenchError:
        return None


def digest_in_image(case: Case, options: RunOptions) -> str | None:
    """The digest of the configuration that the image resolves; None where it refuses."""
    words = image_arguments(case, options)
    try:
        arguments = PARSER.parse_args(words)
        return request.resolve(arguments, request.unresolved(words, arguments)).request.config_digest
    except UsageError:
        return None


@pytest.mark.parametrize("case", CATALOG.cases.values(), ids=lambda case: case.name)
def test_job_and_image_agree(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting on one stack in turn, everything else on each."""
    stacks = [stack for stack in CATALOG.stacks.values() if case.name in stack.runs]
    disagreements = []
    accepted = refused = 0
    for number, options in enumerate(options_of(case)):
        for stack in [stacks[number % len(stacks)]] if options.set_ else stacks:
            monkeypatch.setenv("FLAGBENCH_STACK", stack.name)
            host, image = digest_on_host(case, stack, options), digest_in_image(case, options)
            if host != image:
                disagreements.append((stack.name, options, host, image))
            elif host is None:
                refused += 1
            else:
                accepted += 1
    assert disagreements == []
    assert min(accepted, refused) > 20


def test_a_described_image_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them, by the process that a user starts."""
    combinations = [
        (case, stack, options)
        for case in CATALOG.cases.values()
        for stack in CATALOG.stacks.values()
        if case.name in stack.runs
        for options in options_of(case)
    ]
    for case, stack, options in random.Random(20).sample(combinations, DRAWN):
        done = subprocess.run(
            [sys.executable, "-m", "flagbench_cases", *image_arguments(case, options)],
            env={**os.environ, "FLAGBENCH_STACK": stack.name},
            stdout=subprocess.PIPE,
            check=False,
        )
        answer = json.loads(done.stdout)
        host = digest_on_host(case, stack, options)
        assert done.returncode == (ExitCode.USAGE if host is None else 0)
        assert host == answer["config_digest"]
