"""Makes the replayed records of tests/unit/host/verdict: honest records, and some with one thing made different.

python tests/make_replays.py    # writes all of them again
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flagbench.manifests.rows import Claim
from honest import CLAIMS, Pace, honest_record

_A100 = CLAIMS["distilbert/a100-1x8-fp32"]
_TINY = replace(
    _A100,
    id="distilbert/cpu-tiny",
    stack="cpu",
    run=replace(_A100.run, gpus=1, preset="tiny", precision="fp32"),
    conditions={
        **_A100.conditions,
        **{"device_model": "a processor", "model": "distilbert-tiny", "sequence_length": 128, "batch_size": 8},
        **{"weights": "pretrained", "data": "shipped", "workers": 0, "eval_batch_size": 32, "dropout": "0/0/0"},
        **{"torch": "2.13.0+cpu", "cuda": None, "driver": None, "learning_rate": 0.0015, "max_epochs": 4},
    },
    metrics=tuple(
        replace(m, value=m.value / 18) for m in _A100.metrics if m.name in ("p_core", "p_train", "p_whole")
    ),
)


def _of_80gb(made: dict[str, Any]) -> None:
    name = "NVIDIA A100-SXM4-80GB"
    made["conditions"]["device_model"] = name
    for device in made["system"]["devices"]:
        device.update(name=name, memory_bytes=80 * 2**30)


def _of_other_software(made: dict[str, Any]) -> None:
    for place in (made["conditions"], made["software"]):
        place.update(torch="2.6.0+cu118", cuda="11.8")


def _of_failed_check(made: dict[str, Any]) -> None:
    made["quality"]["checks"][0].update(ok=False, detail="asked for tf32; a matrix product ran in fp32")


def _monitored(made: dict[str, Any], *own: dict[str, Any]) -> None:
    """Telemetry of eight devices; `own`: what the first ones have besides."""
    own += ({},) * (8 - len(own))
    made["telemetry"] = {"devices": [{"index": i, "util_mean": 0.97, **more} for i, more in enumerate(own)]}


def _throttled(made: dict[str, Any]) -> None:
    seconds = {"gpu_idle": 9.0, "hw_thermal_slowdown": 30.0, "sw_power_cap": 0.4}
    _monitored(made, {"throttle_seconds": seconds}, {"throttle_seconds": {"hw_thermal_slowdown": 2.0}})


def _with_another_tenant(made: dict[str, Any]) -> None:
    _monitored(made, {}, {"foreign_processes": 2})


def _as_it_is(made: dict[str, Any]) -> None:
    """Change nothing."""


REPLAYS: dict[str, tuple[Claim, Pace, Callable[[dict[str, Any]], None]]] = {
    "a100-1x8": (_A100, Pace(), _as_it_is),
    "a100-1x8-80gb": (_A100, Pace(), _of_80gb),
    "a100-1x8-above": (_A100, Pace(slower=0.84), _as_it_is),
    "a100-1x8-below": (_A100, Pace(slower=1.3), _as_it_is),
    "a100-1x8-cuda11.8": (_A100, Pace(), _of_other_software),
    "a100-1x8-failed-check": (_A100, Pace(), _of_failed_check),
    "a100-1x8-inconclusive": (_A100, Pace(slower=1.04, noise=0.15, seed=9), _as_it_is),
    "a100-1x8-partial-batches": (_A100, Pace(partial=0.125), _as_it_is),
    "a100-1x8-tenant": (_A100, Pace(), _with_another_tenant),
    "a100-1x8-throttled": (_A100, Pace(), _throttled),
    "a100-1x8-unsteady": (_A100, Pace(slower=0.95, drift=0.1), _as_it_is),
    "cpu-tiny": (_TINY, Pace(), _as_it_is),
}
"""The files of tests/unit/host/verdict/replays: the claim, the pace, and what else is made different."""


def replayed(name: str, seed: int = 0) -> dict[str, Any]:
    """A record of REPLAYS; `seed`: of its step times."""
    claim, pace, change = REPLAYS[name]
    number = [*REPLAYS].index(name)  # each is of a run of its own
    made = honest_record(
        claim,
        pace._replace(seed=pace.seed + number + seed),
        steps=None,
        count=130,
        record_id=f"fixture-{name}",
        run_id=f"fixture-{name}",
        created_at=f"2026-01-{number + 1:02d}T12:00:00Z",
    )
    change(made)
    made["fixture"] = "Every number here is made up for tests of the verdict. Nothing measured it."
    return made


if __name__ == "__main__":
    folder = Path(__file__).parent / "unit" / "host" / "verdict" / "replays"
    for name in REPLAYS:
        (folder / f"{name}.json").write_text(json.dumps(replayed(name), separators=(",", ":")) + "\n", "utf-8")
