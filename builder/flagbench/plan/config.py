"""The configuration that a plan is made for: a preset of a case with the settings that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.manifests.settings import preset_of
from flagbench.plan.model import Model, Step

AXES = ("tp", "pp")
RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Planned:
    """What does not depend on the layout."""

    case: Case
    config: Mapping[str, Any]
    precision: str
    asked: frozenset[str]
    """Names of the hyper-parameters that were set."""

    @property
    def engine(self) -> Mapping[str, Any]:
        """What the case's first engine supports, as its manifest has it."""
        found: Mapping[str, Any] = next(iter(self.case.raw["engines"].values()))
        return found

    @property
    def training(self) -> bool:
        """Whether the case trains; else it only runs forward."""
        return "train" in self.config

    @property
    def model(self) -> Model:
        """The sizes of the model."""
        return Model.of(self.config["model"])

    @property
    def recomputes(self) -> tuple[str, ...]:
        """The recomputations to choose from: all that the case has, or the one that was set.

        Selective repeats nothing where attention is one kernel, as in the cases: it then equals none.
        """
        if not self.training:
            return ("none",)
        train = self.config["train"]
        found = (train[RECOMPUTE],) if RECOMPUTE in self.asked else self.case.settable[RECOMPUTE]["choices"]
        same = {"selective": "none"} if train["flash_attention"] else {}
        return tuple(dict.fromkeys(same.get(each, each) for each in found))

    def value(self, name: str) -> Any:
        """The value of a hyper-parameter."""
        found: Any = self.config
        for key in self.case.settable[name]["path"].split("."):
            found = found[key]
        return found

    def step(self, recompute: str) -> Step:
        """A step with that recomputation. Raises FlagbenchError if micro-batches do not make up a batch."""
        length = self.config["data"]["sequence_length"]
        if not self.training:
            return Step(length, self.config["infer"]["batch_size"], 1, self.precision, fused_attention=False)
        train = self.config["train"]
        batch, micro = train["batch_size"], train["micro_batch_size"]
        if batch % micro:
            raise FlagbenchError(
                f"batch_size {batch} is not a multiple of micro_batch_size {micro}",
                remedy="choose a batch_size of micro_batch_size x accumulated micro-batches",
            )
        return Step(
            length,
            micro,
            batch // micro,
            self.precision,
            recompute,
            fused_attention=train["flash_attention"],
            distributed_optimizer=train["distributed_optimizer"],
        )


def splits(case: Case) -> bool:
    """Whether the case's first engine splits a model, and the model is one whose memory can be predicted."""
    engine, reference = next(iter(case.raw["engines"].values())), case.presets["reference"]
    return bool(set(AXES) & set(engine["layout"])) and set(Model.__dataclass_fields__) <= set(reference["model"])


def planned(case: Case, preset: str, precision: str | None, settings: Sequence[str]) -> Planned:
    """The configuration of a case that is split; `settings` are NAME=VALUE, already checked."""
    config = preset_of(case, preset, "faithful")
    asked = set()
    for setting in settings:
        name, _, raw = setting.partition("=")
        *sections, key = case.settable[name]["path"].split(".")
        section = config
        for part in sections:
            section = section[part]
        section[key] = _typed(raw, case.settable[name]["type"])
        asked.add(name)
    return Planned(case, config, precision or case.raw["default_precision"], frozenset(asked))


def _typed(raw: str, kind: str) -> Any:
    if kind == "boolean":
        return raw.lower() == "true"
    return {"integer": int, "number": float, "string": str}[kind](raw)
