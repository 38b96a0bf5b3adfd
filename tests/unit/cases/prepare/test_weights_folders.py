"""Hugging Face folders in shards: every tensor is read, file by file, and every lack is said before it matters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flagbench_cases.prepare import weights
from flagbench_cases.shared.errors import DataError
from unit.cases.prepare.pickled import CURRENT_TORCH, save_tensors, sharded
from unit.cases.refusal import refusal, refuses

pytestmark = pytest.mark.image

KINDS = pytest.mark.parametrize("kind", ["safetensors", pytest.param("bin", marks=CURRENT_TORCH)])


def some(*names: str) -> dict[str, torch.Tensor]:
    """Tensors of the types that checkpoints are in."""
    types = (torch.float32, torch.float16, torch.bfloat16)
    return {name: torch.full((2, 3), index + 1.5).to(types[index % 3]) for index, name in enumerate(names)}


def drained(folder: Path) -> dict[str, torch.Tensor]:
    return dict(weights.iter_tensors(str(folder)))


@KINDS
def test_the_first_tensors_come_before_the_last_file_is_opened(tmp_path: Path, kind: str) -> None:
    folder = sharded(tmp_path, kind, [some("a"), some("b")])
    last = weights.shard_files(str(folder))[-1]
    Path(last).write_bytes(b"damaged")
    found = weights.iter_tensors(str(folder))
    assert next(found)[0] == "a"
    assert Path(last).name in refusal(next, found)


def test_a_missing_tensor(tmp_path: Path) -> None:
    folder = sharded(tmp_path, "safetensors", [some("a", "b"), some("c")])
    save_tensors(Path(weights.shard_files(str(folder))[0]), some("a"))
    assert refusal(drained, folder).endswith(" b")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "'../elsewhere.safetensors'"),
        *(('{"weight_map": %s}' % wrong, "weight_map") for wrong in ('{"a": 1}', "{}")),
        *((wrong, "") for wrong in ("[]", "[" * 100_000)),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with refuses(DataError, path, named):
        weights.iter_tensors(str(tmp_path))


def test_a_folder_without_a_checkpoint_is_said(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with refuses(DataError, folder, "model.safetensors", "pytorch_model.bin"):
            weights.iter_tensors(str(folder))


def test_cut_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors(path, some("a", "b", "c"))
    content = path.read_bytes()
    for kept in (0, 8, 30, len(content) - 1):
        path.write_bytes(content[:kept])
        assert str(path) in refusal(drained, tmp_path)
