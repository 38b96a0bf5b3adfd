"""The claims against the published table, cell by cell, and against themselves."""

from __future__ import annotations

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import NOT_PUBLISHED, Claim

CLAIMS = load_catalog().claims

# The rows of FlagPerf's training/nvidia/distilbert-pytorch/README.md, as printed.
TABLE = """
| 配置                | precision | fix_hp           | e2e_time | p_whole | p_train | p_core | acc   | mem       |
| A100单机8卡（1x8）  | fp32      | /                | 361      | 1764.0  | 1861.9  | 1942.6 | 0.915 | 13.9/40.0 |
| A100单机8卡（1x8）  | fp32      | bs=96            | 334.7    | 2019.1  | 2135.8  | 2181.0 | 0.908 | 33.4/40.0 |
| A100单机单卡（1x1） | fp32      | bs=96,lr=0.00015 | 720.8    | 283.7   | 286.1   | 287.9  | 0.912 | 32.7/40.0 |
| A100两机8卡（2x8）  | fp32      | bs=96            | 58.9     | 3531.1  | 3892.3  | 4058.3 | 0.911 | 32.9/40.0 |
"""
IDS = ["1x8-fp32", "1x8-fp32-bs96", "1x1-fp32-bs96", "2x8-fp32-bs96"]
HEADER, *ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("name", "row"), list(zip(IDS, ROWS)), ids=IDS)
def test_every_cell_is_the_printed_one(name: str, row: list[str]) -> None:
    claim = CLAIMS[f"distilbert/a100-{name}"]
    cells = dict(zip(HEADER, row))
    assert [part.strip() for part in claim.row.split("|")] == [cells["配置"], cells["precision"], cells["fix_hp"]]
    assert claim.precision_label == cells["precision"]
    for metric in ("e2e_time", "p_whole", "p_train", "p_core", "acc"):
        published = claim.metric(metric)
        assert published is not None
        assert published.value == float(cells[metric])
    memory = claim.metric("mem_peak")
    assert memory is not None
    assert [memory.value, memory.of] == [float(part) for part in cells["mem"].split("/")]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_what_a_claim_runs_is_what_it_says(claim: Claim) -> None:
    conditions = dict(claim.conditions)
    assert claim.run.nodes == conditions["nodes"]
    assert claim.run.nodes * claim.run.gpus == conditions["devices"]
    assert claim.run.precision == claim.precision_executed == conditions["precision"]
    assert claim.run.division == conditions["division"]
    for name, value in claim.run.set.items():
        assert conditions[name] in (value, NOT_PUBLISHED)


def test_the_counted_samples_explain_the_anomalies() -> None:
    """Steps times full batches of all devices: what the notes derive their epochs from."""
    for devices, batch, counted in ((8, 32, 67_584), (8, 96, 67_584), (1, 96, 67_392), (16, 96, 67_584)):
        per_device = -(-67_349 // devices)
        assert -(-per_device // batch) * batch * devices == counted
    assert round(67_584 / 2019.1 * 10, 1) == 334.7
    assert round(67_392 / 283.7 * 3, 1) == 712.6
