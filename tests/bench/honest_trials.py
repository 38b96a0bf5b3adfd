"""Runs that people make: a case's tiny preset on a processor with options that they use, drawn from a seed."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

CASES = ("distilbert", "glm", "llama2-7b-lora", "aquila-33b", "llama2-70b")
NATIVE, CONTAINER, DOCKER = "native", "container", "docker run"
QUIET, ONE_CORE, BUSY, STOPPED, ABROAD, NAMESPACE, QUOTA = (
    "quiet",
    "one core",
    "busy machine",
    "stopped for 3 s",
    "another locale and time zone",
    "time namespace",
    "half a processor",
)
CONDITIONS = {
    NATIVE: (QUIET,) * 6 + (ONE_CORE, BUSY, STOPPED, ABROAD, NAMESPACE),
    CONTAINER: (QUIET,) * 4 + (BUSY, STOPPED),
    DOCKER: (QUIET,) * 3 + (ONE_CORE, BUSY, STOPPED, ABROAD, QUOTA, QUOTA),
}
"""What happens to a run of each way, each as often as it is named."""

# (name, values) of `--set`; the case's own value is the likeliest.
SETTINGS: Mapping[str, Sequence[tuple[str, Sequence[Any]]]] = {
    "distilbert": (
        ("batch_size", (4, 16)),
        ("gradient_accumulation_steps", (2,)),
        ("learning_rate", (0.001,)),
        ("eval_batch_size", (16, 64)),
        ("workers", (1, 2)),
        ("dropout", (0.1,)),
        ("target_acc", (0.8,)),
    ),
    "glm": (
        ("batch_size", (8, 32)),
        ("clip_norm", (0.5,)),
        ("workers", (1, 2)),
        ("recompute", (True,)),
        ("dropout", (0.1,)),
        ("evaluate_every_samples", (528, 2112)),
        ("eval_batch_size", (16,)),
    ),
    "llama2-7b-lora": (
        ("batch_size", (2, 8)),
        ("gamma", (0.9,)),
        ("recompute", (True,)),
        ("memory_monitor", (True,)),
        ("workers", (1, 2)),
        ("lora_dropout", (0.1,)),
        ("mmlu_train_mode", (False,)),
    ),
    "aquila-33b": (("workers", (1, 2)), ("vocabulary_padding", ("zeros",))),
    "llama2-70b": (
        ("micro_batch_size", (1, 4)),
        ("batch_size", (4, 16)),
        ("recompute", ("selective", "full")),
        ("distributed_optimizer", (False,)),
        ("flash_attention", (False,)),
    ),
}
# The other cases run a processor in fp32 only.
PRECISIONS = {"distilbert": ("bf16",), "llama2-7b-lora": ("bf16",), "aquila-33b": ("fp32",), "llama2-70b": ("fp32",)}
DATA = {"distilbert": ("tsv", "npz"), "llama2-70b": ("prepared",)}
"""Kinds of data folders that a case's tiny model can read, besides its own set and synthetic data."""
LAYOUTS = {
    "aquila-33b": {1: ({},), 2: ({}, {"tp": 1}), 4: ({}, {"tp": 2}, {"tp": 1})},
    "llama2-70b": {
        1: ({},),
        2: ({}, {"tp": 2}, {"pp": 2}),
        4: ({}, {"tp": 2, "pp": 2}, {"tp": 4}, {"pp": 4}, {"tp": 2}),
    },
}
"""Splits of each case over 1, 2 and 4 ranks; without any, one of its own."""
CHECKPOINTS = ("llama2-7b-lora", "llama2-70b")
TRAINED_FOR_MINUTES = "distilbert"
"""Its whole run is made shorter."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run, or a series of two, of the tiny preset of a case."""

    number: int
    case: str
    way: str
    condition: str
    words: tuple[str, ...]
    """Options of a run, the same for `flagbench run` and an image."""
    environment: tuple[tuple[str, str], ...] = ()
    data: str | None = None
    """One of DATA, or None for what `words` say."""
    repeat: int = 1
    resumed: bool = False
    """Whether it is run again, resumed from its last checkpoint."""

    @property
    def name(self) -> str:
        """Of its folder, and of its run or series."""
        return f"{self.number:04d}-{self.case}"

    def describe(self) -> str:
        """A line for a person."""
        more = [f"data {self.data}"] * bool(self.data) + ["series of 2"] * (self.repeat > 1)
        more += ["resumed"] * self.resumed + [f"{name}={value}" for name, value in self.environment]
        return " ".join([self.case, *self.words, *(f"({each})" for each in (self.way, self.condition, *more))])

    def to_json(self) -> str:
        """As it is kept in a folder."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def draw(seed: int, number: int, images: Sequence[str]) -> Trial:
    """The trial of that number, which depends on nothing else; in a container if its case has an image."""
    rng = random.Random(f"{seed}/{number}")
    case = CASES[number % len(CASES)]
    way = NATIVE
    if case in images and rng.random() < 0.5:
        way = rng.choice((CONTAINER, DOCKER))
    condition = rng.choice(CONDITIONS[way])
    environment = {"OMP_NUM_THREADS": rng.choice("1111111112")}
    if condition == ABROAD:
        environment.update(TZ="Pacific/Kiritimati", LC_ALL="tr_TR.UTF-8", LANG="de_DE.UTF-8")
    ranks = rng.choice((1, 1, 2, 4))
    resumed = case in CHECKPOINTS and way == NATIVE and condition == QUIET and rng.random() < 0.25
    repeat = 2 if way != DOCKER and not resumed and rng.random() < 0.15 else 1
    data = rng.choice(DATA[case]) if case in DATA and not resumed and rng.random() < 0.3 else None
    words = ["--gpus", str(ranks)]
    if data is None and rng.random() < 0.2:
        words += ["--data", "synthetic"]
    if rng.random() < 0.5:
        words += ["--precision", rng.choice(PRECISIONS.get(case, ("fp32",)))]
    words += _length(rng, case, condition, resumed or "synthetic" in words)
    if rng.random() < 0.3 and repeat == 1:
        words += ["--seed", str(rng.randrange(2**31))]
    if rng.random() < 0.2:
        words += ["--timeout", "300"]
    settings = dict(rng.choice(LAYOUTS.get(case, {}).get(ranks, ({},))))
    settings.update((name, rng.choice(values)) for name, values in SETTINGS[case] if rng.random() < 0.2)
    settings.update(_shorter(case, settings, words, resumed))
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={_text(value)}")]
    return Trial(number, case, way, condition, tuple(words), tuple(environment.items()), data, repeat, resumed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _length(rng: random.Random, case: str, condition: str, window: bool) -> list[str]:
    """Options for the length of a run. `window`: not a whole one."""
    if condition == STOPPED:
        return ["--steps", "200"]
    kinds = ["steps", "steps", "samples"] + ["whole", "full"] * (not window)
    kind = rng.choice(kinds)
    if kind == "steps":
        return ["--steps", str(rng.choice((10, 40, 120, 200)))]
    if kind == "samples" and case != "aquila-33b":
        return ["--max-samples", str(rng.choice((400, 1600)))]
    return ["--full"] if kind == "full" else []


def _shorter(case: str, settings: Mapping[str, Any], words: Sequence[str], resumed: bool) -> dict[str, Any]:
    """What keeps a run within a minute or two, and its layout possible."""
    found: dict[str, Any] = {}
    if case == TRAINED_FOR_MINUTES and "--steps" not in words and "--max-samples" not in words:
        found["max_epochs"] = 2
    if resumed:
        found["checkpoint_every_steps"] = 10
    if "micro_batch_size" in settings:  # a batch is whole micro-batches
        found["batch_size"] = max(settings.get("batch_size", 8), settings["micro_batch_size"])
    return found
