"""Files of tensors that are written one at a time are those that safetensors reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from flagbench_cases.rank import tensor_file

pytestmark = pytest.mark.image


def test_what_is_written_is_read_by_the_library(tmp_path: Path) -> None:
    """Every type, in any order: the library refuses gaps and tensors that are not aligned."""
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {str(dtype): torch.arange(7).to(dtype) for dtype in tensor_file.TYPES}
    tensors.update(scalar=torch.tensor(3.0), empty=torch.empty(0, 4), turned=torch.rand(3, 5).T, é=torch.ones(1))
    path, beats = tmp_path / "one", []
    found = tensor_file.write(str(path), tensors, lambda: beats.append(1))
    content = path.read_bytes()
    assert found == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert len(beats) == len(tensors)
    read = safetensors.load_file(str(path))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)
        assert read[name].data_ptr() % tensor.element_size() == 0


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text("other")
    with pytest.raises(FileExistsError):
        tensor_file.write(str(path), {})
    assert path.read_text() == "other"
