"""Which configurations are earlier runs of each other."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec

from flagbench.records.digest import history_digest, unseeded_record_digest
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_core.config import Options, digest, resolve

MEASURED = read_record((Path(__file__).parents[4] / "docs/measured/h100-roofs-mamf-bf16.json").read_bytes())


def roofs(*settings: str) -> Record:
    """The record of an H100 with the configuration of a run with these settings."""
    config = resolve(load_case("roofs"), load_stack("cuda13"), Options(settings=settings))
    return msgspec.structs.replace(MEASURED, config=config, config_digest=digest(config))


def test_neither_the_time_nor_heat_nor_mamfs_shapes_tell_runs_apart() -> None:
    plain = roofs()
    for settings in (
        ("measure_seconds=36",),
        ("heat_seconds=30",),
        ("mamf_shape_bf16=2048x2048x13312", "mamf_shape_fp8=1024x9216x14336"),
    ):
        other = roofs(*settings)
        assert history_digest(other) == history_digest(plain)
        assert other.config_digest != plain.config_digest


def test_a_soak_is_not_the_history_of_a_run_without_laps() -> None:
    assert history_digest(roofs("laps=10")) != history_digest(roofs())
    assert history_digest(roofs("laps=10", "measure_seconds=90")) == history_digest(roofs("laps=10"))


def test_another_shape_is_another_configuration() -> None:
    assert history_digest(roofs("m=4096")) != history_digest(roofs())


def test_a_default_changes_no_digest() -> None:
    assert roofs("heat_seconds=0", "laps=0", "mamf_shape_bf16=none").config_digest == roofs().config_digest


def test_the_configuration_of_a_record_is_left_as_it_is() -> None:
    record = roofs("heat_seconds=30")
    before = copy.deepcopy(record.config)
    history_digest(record)
    assert record.config == before


def test_a_configuration_without_such_paths_has_the_digest_without_its_seed() -> None:
    record = msgspec.structs.replace(MEASURED, config={"case": "toy", "seed": 7, "measure": 3})
    assert history_digest(record) == unseeded_record_digest(record)
