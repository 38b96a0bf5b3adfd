"""From a case and a command line to one resolved configuration: what may be set, what is chosen, what is hashed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from flagbench_cases.shared import manifests
from flagbench_core import config
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CASE: dict[str, Any] = {
    "name": "toy",
    "default_precision": "tf32",
    "precisions": ["tf32", "fp32", "bf16"],
    "does_not_run": {},
    "engines": {"torch": {"layout": ["dp"]}},
    "resume": False,
    "presets": {
        "reference": {
            "data": {"default": "synthetic", "length": 512, "synthetic": {"mean": 13.3}},
            "model": {"dim": 768, "dropout": 0.1},
            "train": {
                "batch_size": 32,
                "learning_rate": 5e-05,
                "max_epochs": 10,
                "target_acc": 0.91,
                "window_steps": 200,
                "shuffle": True,
                "optimizer": "adam",
            },
        },
        "tiny": {"data": {"default": "shipped", "length": 128}, "model": {"dim": 64}, "train": {"window_steps": 50}},
    },
    "settable": {
        "batch_size": {"path": "train.batch_size", "type": "integer", "minimum": 1, "maximum": 4096},
        "dropout": {"path": "model.dropout", "type": "number", "minimum": 0, "exclusive_maximum": 1},
        "learning_rate": {"path": "train.learning_rate", "type": "number", "exclusive_minimum": 0},
        "target_acc": {"path": "train.target_acc", "type": "number", "exclusive_minimum": 0, "maximum": 1},
        "temperature": {"path": "model.temperature", "type": "number"},
        "shuffle": {"path": "train.shuffle", "type": "boolean"},
        "checkpoint_every_steps": {"path": "train.checkpoint_every_steps", "type": "integer", "minimum": 0},
        "optimizer": {"path": "train.optimizer", "type": "string", "choices": ["adam", "sgd"]},
        "clip": {"path": "train.clip", "type": "integer", "minimum": 1, "default": 0},
        "product": {"path": "train.kernels.product", "type": "shape", "default": "none"},
    },
}
CPU = {"name": "cpu", "device": {"kind": "cpu"}, "does_not_run": {}}
A100 = {"name": "a100", "device": {"kind": "cuda"}, "does_not_run": {}}


def resolve(stack: dict[str, Any] = CPU, case: dict[str, Any] = CASE, **changes: Any) -> dict[str, Any]:
    return config.resolve(case, stack, config.Options(**changes))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch_size=1", 1),
        ("batch_size=4096", 4096),
        ("dropout=0", 0.0),
        ("learning_rate=1e-9", 1e-9),
        ("target_acc=1", 1.0),
        ("shuffle=False", False),
        ("optimizer=sgd", "sgd"),
        ("clip=0", 0),
        ("product=64x128x32", [64, 128, 32]),
        ("product=none", "none"),
    ],
)
def test_a_setting_within_its_rule_gives_a_typed_value(text: str, value: object) -> None:
    name, parsed = config.read_setting(CASE, text)
    assert (name, parsed) == (text.split("=")[0], value)
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("batch_size=0", "at least 1"),
        ("batch_size=4097", "at most 4096"),
        ("batch_size=3.5", "an integer"),
        ("batch_size=true", "an integer"),
        ("dropout=1", "less than 1"),
        ("learning_rate=0", "more than 0"),
        ("target_acc=1.01", "at most 1"),
        ("shuffle=yes", "true or false"),
        ("optimizer=lamb", "adam, sgd"),
        ("clip=-1", "at least 1"),
        ("product=64x128", "2048x2048x13312"),
        ("product=64x0x32", "2048x2048x13312"),
        ("momentum=0.9", "choose one of: batch_size"),
        ("batch_size", "NAME=VALUE"),
        ("=3", "choose one of:"),
    ],
)
def test_a_setting_outside_its_rule_is_a_usage_error(text: str, remedy: str) -> None:
    with refuses(config.ConfigError) as caught:
        config.read_setting(CASE, text)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("value", ["nan", "-inf", "1e999"])
@pytest.mark.parametrize("name", ["learning_rate", "temperature"])
def test_no_number_that_is_not_finite_may_be_set(name: str, value: str) -> None:
    # learning_rate has no upper limit, temperature none at all: the range alone would let these pass.
    with pytest.raises(config.ConfigError):
        config.read_setting(CASE, "%s=%s" % (name, value))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("batch_size", 8, True),
        ("batch_size", 8.0, False),
        ("batch_size", True, False),
        ("dropout", 0, True),
        ("dropout", None, False),
        ("shuffle", True, True),
        ("shuffle", "true", False),
        ("optimizer", "sgd", True),
        ("optimizer", 1, False),
    ],
)
def test_a_value_of_a_manifest_has_the_type_of_its_setting(name: str, value: object, allowed: bool) -> None:
    assert (config.setting_fault(CASE["settable"][name], value) is None) == allowed


def test_tiny_stands_over_reference_section_by_section() -> None:
    tiny = resolve(preset="tiny")
    assert tiny["model"] == {"dim": 64, "dropout": 0.1}
    assert tiny["data"] == {"length": 128, "synthetic": {"mean": 13.3}, "source": "shipped"}
    assert tiny["train"]["batch_size"] == 32


@pytest.mark.parametrize(
    ("asked", "window_steps"),
    [
        ({}, 200),  # synthetic: there is nothing to converge on
        ({"preset": "tiny"}, None),  # it carries a real set
        ({"preset": "tiny", "source": "synthetic"}, 50),
        ({"source": "files"}, None),
        ({"source": "files", "steps": 7}, 7),
        ({"max_samples": 65}, 3),  # a batch begun is a step
        ({"max_samples": 65, "nodes": 2, "gpus": 2}, 1),
        ({"max_samples": 65, "settings": ("batch_size=65",)}, 1),
    ],
)
def test_how_long_a_run_is(asked: dict[str, Any], window_steps: int | None) -> None:
    assert resolve(**asked)["train"]["window_steps"] == window_steps


@pytest.mark.parametrize(
    ("stack", "asked", "executed"),
    [
        (A100, None, "tf32"),
        (CPU, None, "fp32"),  # a processor has no TF32
        (A100, "fp32", "fp32"),
        (A100, "tf32", "tf32"),
        (CPU, "bf16", "bf16"),
    ],
)
def test_the_precision_that_is_executed(stack: dict[str, Any], asked: str | None, executed: str) -> None:
    assert resolve(stack, precision=asked)["precision"] == executed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": "fp16"}, "fp16"),
        ({"precision": "tf32"}, "TF32"),
        ({"preset": "huge"}, "huge"),
        ({"stack": dict(CPU, does_not_run={"toy": "it has no toys"})}, "cpu: it has no toys"),
    ],
)
def test_what_a_case_does_not_offer_is_a_usage_error(changes: dict[str, Any], named: str) -> None:
    with refuses(config.ConfigError, named):
        resolve(**changes)


def test_a_default_is_not_in_the_configuration() -> None:
    assert resolve(settings=("clip=0", "product=none"), preset="tiny") == resolve(preset="tiny")
    changed = resolve(settings=("clip=2", "product=64x128x32"), preset="tiny")
    assert changed["train"]["clip"] == 2
    assert changed["train"]["kernels"] == {"product": [64, 128, 32]}


def test_how_long_a_run_measures() -> None:
    assert config.measuring_seconds({"seconds": 120, "window_steps": 20}) == 120
    assert config.measuring_seconds({"seconds": 60, "laps": 20, "heat_seconds": 30}) == 1230


def test_the_digest_is_sha256_of_sorted_compact_utf8() -> None:
    content = {"b": [1, 2.5, None, True], "a": {"z": "über", "y": 5e-05}}
    canonical = '{"a":{"y":5e-05,"z":"über"},"b":[1,2.5,null,true]}'
    assert config.canonical(content) == canonical
    # The literal is what `sha256sum` says of that text.
    literal = "sha256:08f0e67e3a27498bfa5a1262aa6a9e39158f4414abd8f2374368df8d7a5904a6"
    assert "sha256:" + hashlib.sha256(canonical.encode("utf-8")).hexdigest() == literal
    assert config.digest(content) == literal
    assert config.digest(json.loads(json.dumps(content))) == literal
    assert config.digest(dict(reversed(list(content.items())))) == literal


def test_the_digest_tells_configurations_apart_and_only_them() -> None:
    assert config.digest(resolve()) == config.digest(resolve())
    distinct = [
        resolve(),
        resolve(seed=1),
        resolve(gpus=2),
        resolve(nodes=2),
        resolve(steps=3),
        resolve(settings=("dropout=0",)),
        resolve(preset="tiny"),
        resolve(weights=True),
        resolve(precision="bf16"),
    ]
    assert len({config.digest(each) for each in distinct}) == len(distinct)
    # 200 steps by default and 200 steps by flag are one configuration.
    assert config.digest(resolve(steps=200)) == config.digest(resolve())


def test_the_shipped_case_and_stack_resolve() -> None:
    assert "distilbert" in manifests.case_names()
    case, stack = manifests.load_case("distilbert"), manifests.load_stack("cpu")
    found = resolve(stack, case, preset="tiny")
    assert found["precision"] == "fp32"
    assert found["model"]["dim"] == case["presets"]["tiny"]["model"]["dim"]
    for name, rule in case["settable"].items():
        section = found
        for key in rule["path"].split("."):
            assert key in section, "%s: there is no %s" % (name, rule["path"])
            section = section[key]


SPLIT = {**CASE, "engines": {"torch": {"layout": ["dp", "tp"]}}}


def with_layout(case: dict[str, Any], **layout: int) -> dict[str, Any]:
    presets = {**case["presets"], "reference": {**case["presets"]["reference"], "layout": layout}}
    return {**case, "presets": presets}


@pytest.mark.parametrize(
    ("layout", "ranks", "named"),
    [
        ({"tp": 2}, {"gpus": 3}, "replicas of 2"),
        ({"tp": 2}, {"gpus": 1}, "replicas of 2"),
        ({"pp": 2}, {"gpus": 2}, "pp 2"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout: dict[str, int], ranks: dict[str, int], named: str) -> None:
    with refuses(config.ConfigError, named):
        resolve(case=with_layout(SPLIT, **layout), **ranks)


@pytest.mark.parametrize("case", ["llama2-70b", "llama3-8b", "llama3.1-8b-lora", "qwen2.5-7b-lora"])
def test_a_batch_that_micro_batches_do_not_make_up_is_refused(case: str) -> None:
    with refuses(config.ConfigError, "batch_size 7 is not a multiple of micro_batch_size 2"):
        resolve(manifests.load_stack("cpu"), manifests.load_case(case), preset="tiny", settings=("batch_size=7",))


@pytest.mark.parametrize(
    ("case", "gpus", "settings", "named"),
    [
        ("llama2-70b", 3, ("pp=3",), "model.layers"),
        ("llama2-70b", 8, ("tp=8",), "model.kv_heads"),
        ("aquila-33b", 3, (), "model.heads"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(
    case: str, gpus: int, settings: tuple[str, ...], named: str
) -> None:
    with refuses(config.ConfigError, named):
        resolve(manifests.load_stack("cpu"), manifests.load_case(case), preset="tiny", gpus=gpus, settings=settings)


ENGINES = {
    "torch": {"layout": ["dp"]},
    "other": {"layout": [], "max_nodes": 1, "resume": False, "does_not_run": {"a100": "it is slow there"}},
}
CHOICE = {
    **CASE,
    "resume": True,
    "engines": ENGINES,
    "presets": {"reference": {**CASE["presets"]["reference"], "engine": {"name": "torch"}}},
    "settable": {**CASE["settable"], "engine": {"path": "engine.name", "type": "string", "choices": list(ENGINES)}},
}


@pytest.mark.parametrize(
    ("stack", "asked", "named"),
    [
        (CPU, {"gpus": 2}, "dp 2"),
        (CPU, {"nodes": 2}, "one node"),
        (A100, {}, "it is slow there"),
    ],
)
def test_what_an_engine_does_not_support_is_refused(stack: dict[str, Any], asked: dict[str, int], named: str) -> None:
    resolve(stack, CHOICE, **asked)
    with refuses(config.ConfigError, named) as caught:
        resolve(stack, CHOICE, settings=("engine=other",), **asked)
    assert "--set engine=torch" in caught.value.remedy


def test_checkpoints_without_support_are_refused() -> None:
    every = "checkpoint_every_steps=5"
    resolve(CPU, CHOICE, resume=True)
    resolve(CPU, CHOICE, settings=(every,), out=True)
    with refuses(config.ConfigError, "other"):
        resolve(CPU, CHOICE, resume=True, settings=("engine=other",))
    with refuses(config.ConfigError, "other"):
        resolve(CPU, CHOICE, settings=("engine=other", every), out=True)
    with refuses(config.ConfigError, "--out"):
        resolve(CPU, CHOICE, settings=(every,))
    with refuses(config.ConfigError, "toy"):
        resolve(resume=True)


def length(**changes: object) -> dict[str, Any]:
    train = {"window_steps": None, "max_epochs": 10, "max_samples": None, "target_acc": None}
    return {"train": {**train, **changes}}


@pytest.mark.parametrize(
    ("configuration", "stop_rule"),
    [
        (length(window_steps=200), "window of 200 steps"),
        (length(), "10 epochs"),
        (length(target_acc=0.91), "acc >= 0.91 or 10 epochs"),
        (length(target_acc=0.8, max_samples=9000), "acc >= 0.8 or 9000 samples"),
        ({"infer": {"window_steps": None}}, "the whole set once"),
        ({"measure": {"window_steps": None}}, "the publisher's iterations"),
    ],
)
def test_when_a_run_ends(configuration: dict[str, Any], stop_rule: str) -> None:
    assert config.stop_rule(configuration) == stop_rule


@pytest.mark.parametrize(
    "configuration",
    [length(window_steps=200.7), length(window_steps=True), length(max_epochs=9.5), length(max_samples="9000")],
)
def test_a_length_that_is_no_integer_gives_no_stop_rule(configuration: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        config.stop_rule(configuration)
