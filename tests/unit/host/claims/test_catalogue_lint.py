"""`claims lint` on a catalogue file: Megatron Bridge's page, and planted faults."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from catalogs import CATALOG
from flagbench.claims.catalogue_rules import lint_catalogue
from flagbench.manifests.catalogue import CatalogueValue, read_catalogue
from unit.host.conftest import Flagbench

FILES = {file.name: file.values for file in read_catalogue(CATALOG.root)}
SPEED, TFLOPS = "tokens_per_second_per_device", "tflops_per_device"


def published(row: int, speed: str, tflops: str, **changed: object) -> list[CatalogueValue]:
    """The two values of a row of a Llama3 8B run, 51.5e9 FLOPs per token unless changed."""
    value = CatalogueValue(
        row=row,
        model="llama3-8b",
        task="pretraining",
        device="DGX-H100",
        device_id="h100-sxm",
        metric=SPEED,
        value=speed,
        unit="tokens/s",
        precision="fp8",
        devices=8,
        sequence="8192",
        software="Release 1.0",
    )
    own = replace(value, **changed)  # type: ignore[arg-type]
    return [own, replace(own, metric=TFLOPS, value=tflops, unit="TFLOP/s")]


SOUND = [*published(1, "14079", "725"), *published(2, "14451", "744"), *published(3, "14211", "731.7")]


def rules(values: list[CatalogueValue]) -> list[tuple[int, str]]:
    return [(finding.row, finding.rule) for finding in lint_catalogue(values, CATALOG.devices)]


def test_megatron_bridge() -> None:
    found = lint_catalogue(FILES["megatron-bridge"], CATALOG.devices)
    by_row = {value.row: value for value in FILES["megatron-bridge"] if value.metric == SPEED}
    releases = {(by_row[f.row].software.split()[-1], f.rule) for f in found}
    grids = {(release, "rounding-grid") for release in ("26.04.01", "26.06.01", "26.08")}
    assert releases == {*grids, ("26.06", "flops-step")}
    assert len(found) == 4
    (step,) = (finding for finding in found if finding.rule == "flops-step")
    assert by_row[step.row].model == "gpt-oss-120b"
    # In 26.04.01 rounding explains most in 1664 tokens/s: 13 sequences a second on 64 devices, half of one is 3.8 %.
    (worst,) = (f for f in found if by_row[f.row].software.endswith("26.04.01"))
    assert (by_row[worst.row].model, by_row[worst.row].device) == ("llama3-70b", "DGX-H100")
    assert {"1664", "13", "3.8%", "2.2%"} <= {*worst.message.replace(",", "").split()}


def test_sound_rows() -> None:
    assert rules(SOUND) == []


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (published(4, "14079", "745"), "flops-per-token"),
        (published(4, "43000", "2215"), "above-peak"),
        (published(4, "15000", "773", devices=16), "scaling"),
        (published(4, "14079", "800", software="Release 1.1", precision="bf16"), "flops-step"),
    ],
)
def test_planted_faults(planted: list[CatalogueValue], rule: str) -> None:
    assert rules([*SOUND, *planted]) == [(4, rule)]


def test_mfu_against_peak() -> None:
    tflops = published(4, "14079", "725")
    assert rules([*tflops, replace(tflops[0], metric="mfu", value="36.6", unit="%")]) == []
    assert rules([*tflops, replace(tflops[0], metric="mfu", value="73.3", unit="%")]) == [(4, "mfu")]


def test_within_half_a_grid_is_no_finding() -> None:
    """Whole sequences a second of the job are 1024 tokens/s of a device: 13.7 of them are printed as 14."""
    speeds = {row: f"{1024 * n}" for row, n in enumerate((14, 15, 17, 19, 21), 10)}
    rounded = [v for row, speed in speeds.items() for v in published(row, speed, f"{float(speed) * 51.5e-3:.1f}")]
    off = published(20, "14336", f"{14029 * 51.5e-3:.1f}")
    assert [rule for _, rule in rules([*rounded, *off])] == ["rounding-grid"]
    assert (20, "flops-per-token") in rules([*SOUND, *off])


def test_command(flagbench: Flagbench) -> None:
    done = flagbench(f"claims lint {CATALOG.root}/catalogue/megatron-bridge.csv --json")
    assert done.code == 12
    told = json.loads(done.out)
    assert (told["rows"], len(told["findings"])) == (293, 4)
    assert flagbench(f"claims lint {CATALOG.root}/catalogue/mamf.csv").code == 0
