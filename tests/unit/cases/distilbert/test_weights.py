"""Checkpoint folders: Hugging Face's load to equal logits; damaged and hostile ones are refused unrun."""

from __future__ import annotations

import builtins
import collections
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from
from flagbench_cases.cases.distilbert.workload import load_checkpoint
from flagbench_cases.prepare import weights
from flagbench_cases.shared.config import load_case
from flagbench_cases.shared.errors import DataError, ExitCode
from unit.cases.prepare.pickled import Call

pytestmark = pytest.mark.image

SECTION = {**load_case("distilbert")["presets"]["reference"]["model"], "layers": 2, "dim": 24, "heads": 2}
SECTION.update(hidden_dim=40, vocab_size=60, positions=16)
CONFIG = {"n_layers": 2, "dim": 24, "n_heads": 2, "hidden_dim": 40, "vocab_size": 60, "max_position_embeddings": 16}
IDS = torch.tensor([[7, 21, 3, 0, 0], [5, 9, 2, 30, 4]])
MASK = (IDS != 0).long()
# torch.load's two formats; the older one is what checkpoints before torch 1.6 are in.
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def classifier(seed: int) -> DistilBertClassifier:
    torch.manual_seed(seed)
    return DistilBertClassifier(config_from(SECTION)).eval()


def write(folder: Path, state: Any, zipped: bool = True, config: dict[str, Any] = CONFIG) -> Path:
    """A checkpoint folder with a pytorch_model.bin."""
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(state, str(folder / "pytorch_model.bin"), _use_new_zipfile_serialization=zipped)
    return folder


def write_safetensors(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    safetensors = pytest.importorskip("safetensors.torch", reason="an optional reader of the image")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    safetensors.save_file(state, str(folder / "model.safetensors"))
    return folder


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    """The message and remedy of the DataError that a call ends in."""
    with pytest.raises(DataError) as caught:
        call(*arguments)
    assert caught.value.code == ExitCode.DATA == 3
    assert caught.value.remedy
    return f"{caught.value.message}; {caught.value.remedy}"


# What loads


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_folder_written_by_transformers_loads_to_equal_logits(tmp_path: Path, safe: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is Hugging Face's implementation")
    oracle = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**CONFIG, num_labels=2, attn_implementation="eager")
    ).eval()
    if int(transformers.__version__.split(".")[0]) < 5:
        oracle.save_pretrained(str(tmp_path), safe_serialization=safe)
    else:  # transformers 5 writes safetensors only; the .bin it no longer writes was a pickled state dict
        oracle.save_pretrained(str(tmp_path))
        if not safe:
            (tmp_path / "model.safetensors").unlink()
            torch.save(oracle.state_dict(), str(tmp_path / "pytorch_model.bin"))
    assert (tmp_path / ("model.safetensors" if safe else "pytorch_model.bin")).is_file()
    model = classifier(1)
    load_checkpoint(model, str(tmp_path), SECTION)
    with torch.no_grad():
        expected = oracle(input_ids=IDS, attention_mask=MASK).logits
        assert torch.allclose(model(IDS, MASK), expected, rtol=0, atol=1e-6)


@FORMATS
def test_both_pickle_formats_and_parameters_load(tmp_path: Path, zipped: bool) -> None:
    source = classifier(0)
    write(tmp_path, {name: torch.nn.Parameter(t) for name, t in source.state_dict().items()}, zipped)
    model = classifier(1)
    load_checkpoint(model, str(tmp_path), SECTION)
    assert torch.equal(model(IDS, MASK), source(IDS, MASK))


def test_safetensors_win_over_a_pickle(tmp_path: Path) -> None:
    source = classifier(0)
    write_safetensors(write(tmp_path, classifier(2).state_dict()), source.state_dict())
    model = classifier(1)
    load_checkpoint(model, str(tmp_path), SECTION)
    assert torch.equal(model(IDS, MASK), source(IDS, MASK))


def test_half_precision_checkpoint_leaves_the_model_in_fp32(tmp_path: Path) -> None:
    source = classifier(0).half()
    write(tmp_path, source.state_dict())
    model = classifier(1)
    load_checkpoint(model, str(tmp_path), SECTION)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.classifier.weight, source.classifier.weight.float())


@pytest.mark.parametrize("prefix", ["distilbert.", ""], ids=["masked-lm", "bare-encoder"])
def test_folder_without_the_head_keeps_the_random_head(tmp_path: Path, prefix: str) -> None:
    source = classifier(0)
    encoder = {prefix + name: tensor for name, tensor in source.distilbert.state_dict().items()}
    write(tmp_path, {**encoder, "vocab_projector.bias": torch.zeros(60)} if prefix else encoder)
    model, untouched = classifier(1), classifier(1)
    load_checkpoint(model, str(tmp_path), SECTION)
    for name, tensor in model.state_dict().items():
        expected = source if name.startswith("distilbert.") else untouched
        assert torch.equal(tensor, expected.state_dict()[name]), name


# What does not fit


@pytest.mark.parametrize("key", sorted(CONFIG))
def test_config_of_another_size_is_refused(tmp_path: Path, key: str) -> None:
    write(tmp_path, classifier(0).state_dict(), config={**CONFIG, key: 48})
    assert f"config.json has {key} = 48" in refusal(load_checkpoint, classifier(1), str(tmp_path), SECTION)


def test_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    state = {**classifier(0).state_dict(), "classifier.weight": torch.zeros(3, 24)}
    message = refusal(load_checkpoint, classifier(1), str(write(tmp_path, state)), SECTION)
    assert "classifier.weight has the shape (3, 24), not (2, 24)" in message


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    state = classifier(0).state_dict()
    name = "distilbert.transformer.layer.1.ffn.lin1.weight"
    del state[name]
    message = refusal(load_checkpoint, classifier(1), str(write(tmp_path, state)), SECTION)
    assert f"has no tensor {name}" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1]", "is not a JSON object"),
    ],
    ids=["missing", "not-json", "not-utf8", "too-deep", "list"],
)
def test_bad_config_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert words in refusal(load_checkpoint, classifier(1), str(tmp_path), SECTION)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    message = refusal(load_checkpoint, classifier(1), str(tmp_path), SECTION)
    assert "neither model.safetensors nor pytorch_model.bin" in message


# What is damaged


@pytest.mark.parametrize("kept", [0, 3, 9, 200, -1])
def test_truncated_safetensors_is_refused(tmp_path: Path, kept: int) -> None:
    write_safetensors(tmp_path, classifier(0).state_dict())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors cannot be read" in refusal(weights.read_state, str(tmp_path))


@FORMATS
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_pickle_is_refused(tmp_path: Path, zipped: bool, share: float) -> None:
    path = write(tmp_path, classifier(0).state_dict(), zipped) / "pytorch_model.bin"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "pytorch_model.bin" in refusal(weights.read_state, str(tmp_path))


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(100), b"<html>404</html>", b"\x80\x02N."])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert "pytorch_model.bin" in refusal(weights.read_state, str(tmp_path))


@pytest.mark.parametrize(
    "state",
    [[torch.ones(2)], {"a": 1}, {0: torch.ones(2)}, {"a": {"b": torch.ones(2)}}],
    ids=["list", "number", "unnamed", "nested"],
)
def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path, state: Any) -> None:
    assert "is not a table of tensors" in refusal(weights.read_state, str(write(tmp_path, state)))


def test_lack_of_memory_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, classifier(0).state_dict())

    def starved(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(torch, "frombuffer", starved)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        weights.read_state(str(tmp_path))


# What is hostile


def hostile(canary: Path) -> dict[str, Any]:
    """States that, if anything in them were called, would leave the file `canary`."""
    touch = f"open({str(canary)!r}, 'w').close()"
    shell = Call(os.system, f"touch {canary}")
    return {
        "os.system": shell,
        "builtins.eval": Call(builtins.eval, touch),
        "builtins.exec": Call(builtins.exec, touch),
        "pathlib": Call(Path.touch, canary),
        "nested": {"distilbert.a": torch.ones(2), "distilbert.b": collections.OrderedDict(inner=[shell])},
        "unpickler": Call(pickle.loads, pickle.dumps(Call(os.system, f"touch {canary}"))),
    }


@FORMATS
@pytest.mark.parametrize("name", sorted(hostile(Path("canary"))))
def test_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path, name: str, zipped: bool) -> None:
    canary = tmp_path / "canary"
    write(tmp_path, hostile(canary)[name], zipped)
    assert "is not a plain checkpoint: it uses" in refusal(weights.read_state, str(tmp_path))
    assert not canary.exists()


@FORMATS
def test_the_hostile_pickle_would_run_elsewhere(tmp_path: Path, zipped: bool) -> None:
    """The canary sings when nobody forbids it; without this the test above could not fail."""
    canary = tmp_path / "canary"
    write(tmp_path, hostile(canary)["nested"], zipped)
    options = {"weights_only": False} if hasattr(torch, "compile") else {}
    torch.load(str(tmp_path / "pytorch_model.bin"), **options)
    assert canary.exists()


def test_bare_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(hostile(canary)["os.system"]))
    assert "it uses" in refusal(weights.read_state, str(tmp_path))
    assert not canary.exists()


class Program(torch.nn.Module):
    """Any module; scripted, its archive carries code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # old files are in a format torch leaves
def test_torchscript_archive_is_refused_unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.jit.save(torch.jit.script(Program()), str(tmp_path / "pytorch_model.bin"))
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("the program was loaded"))
    assert "it is a TorchScript program" in refusal(weights.read_state, str(tmp_path))
