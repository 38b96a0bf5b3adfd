"""`claims lint` on a catalogue file: Megatron Bridge's page, and planted faults."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.claims.catalogue_rules import lint_catalogue
from flagbench.manifests.catalogue import Printed, PublishedRow, peak_of, read_catalogue
from unit.host.conftest import Flagbench

FILES = {source.name: source.rows for source in read_catalogue(CATALOG)}
SPEED, TFLOPS = "tokens_per_second_per_device", "tflops_per_device"


def published(row: int, speed: str, tflops: str, **changed: Any) -> PublishedRow:
    """A row of a Llama3 8B run, 51.5e9 FLOPs per token unless changed."""
    made = PublishedRow(
        row=row,
        model="llama3-8b",
        task="pretraining",
        device="DGX-H100",
        device_id="h100-sxm",
        precision="fp8",
        devices=8,
        sequence="8192",
        software="Release 1.0",
        metrics={SPEED: Printed(speed, "tokens/s"), TFLOPS: Printed(tflops, "TFLOP/s")},
        peak=peak_of(CATALOG.devices["h100-sxm"], "fp8"),
    )
    return replace(made, **changed)


SOUND = [published(1, "14079", "725"), published(2, "14451", "744"), published(3, "14211", "731.7")]


def rules(*rows: PublishedRow) -> list[tuple[int, str]]:
    return [(finding.row, finding.rule) for finding in lint_catalogue(rows)]


def test_megatron_bridge() -> None:
    found = lint_catalogue(FILES["megatron-bridge"])
    by_row = {row.row: row for row in FILES["megatron-bridge"]}
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
    assert rules(*SOUND) == []


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (published(4, "14079", "745"), "flops-per-token"),
        (published(4, "43000", "2215"), "above-peak"),
        (published(4, "15000", "773", devices=16), "scaling"),
        (published(4, "14079", "800", software="Release 1.1", precision="bf16"), "flops-step"),
    ],
)
def test_planted_faults(planted: PublishedRow, rule: str) -> None:
    assert rules(*SOUND, planted) == [(4, rule)]


@pytest.mark.parametrize(("mfu", "found"), [("36.6", []), ("73.3", [(4, "mfu")])])
def test_mfu_against_peak(mfu: str, found: list[tuple[int, str]]) -> None:
    row = published(4, "14079", "725")
    assert rules(replace(row, metrics={**row.metrics, "mfu": Printed(mfu, "%")})) == found


def test_within_half_a_grid_is_no_finding() -> None:
    """Whole sequences a second of the job are 1024 tokens/s of a device: 13.7 of them are printed as 14."""
    speeds = (1024 * n for n in (14, 15, 17, 19, 21))
    rounded = [published(n, f"{speed}", f"{speed * 51.5e-3:.1f}") for n, speed in enumerate(speeds, 10)]
    off = published(20, "14336", f"{14029 * 51.5e-3:.1f}")
    assert [rule for _, rule in rules(*rounded, off)] == ["rounding-grid"]
    assert (20, "flops-per-token") in rules(*SOUND, off)


def test_command(flagbench: Flagbench, tmp_path: Path) -> None:
    done = flagbench(f"claims lint {CATALOG.root}/catalogue/megatron-bridge.csv --json")
    assert done.code == 12
    told = json.loads(done.out)
    assert (told["rows"], len(told["findings"])) == (293, 4)
    assert flagbench(f"claims lint {CATALOG.root}/catalogue/torchtune.csv").code == 0
    (tmp_path / "mine.csv").write_text("row,model,task,device,metric,value,unit\n1,gpt,lora,H100,mfu,much,%\n")
    assert flagbench("claims lint", str(tmp_path / "mine.csv")).code == 3
