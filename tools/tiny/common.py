"""What the generators of tiny sets share: random choices, provenance, vocabularies and weights of Llama."""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, TypeVar

CASES = Path(__file__).parents[2] / "entrypoints" / "flagbench_cases" / "cases"
PROVENANCE = "provenance.json"
T = TypeVar("T")


class Draw:
    """Deterministic choices, using only `Random.random`, which is the same in all Python versions."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability


# Sets that are the same everywhere


def write(files: dict[str, str], folder: Path) -> None:
    """Write texts by name into a folder."""
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8"))


def differing(files: dict[str, str], folder: Path) -> list[str]:
    """The files in a folder that are missing or have another text."""
    names = []
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode("utf-8"):
            names.append(name)
    return names


# Sets that depend on releases of libraries


def sums(folder: Path) -> dict[str, str]:
    """sha256 of every data file below a folder, by its path in it."""
    sums_by_path = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.suffix in (".md", ".py", ".pyc") or file.name == PROVENANCE:
            continue
        sums_by_path[str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return sums_by_path


def write_provenance(folder: Path, script: str, settings: dict[str, Any], *libraries: ModuleType) -> None:
    """Write the settings, the releases of libraries and the sums of a set that was made in a folder."""
    content = {
        "script": "tools/tiny/" + script,
        **settings,
        "libraries": {library.__name__: library.__version__ for library in libraries},
        "sha256": sums(folder),
    }
    (folder / PROVENANCE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def changed(shipped: Path, settings: dict[str, Any]) -> list[str]:
    """The settings and files of a shipped set that are not those of its provenance."""
    provenance = json.loads((shipped / PROVENANCE).read_text(encoding="utf-8"))
    names = []
    for name, setting in settings.items():
        if provenance[name] != json.loads(json.dumps(setting)):
            names.append(name)
    expected, actual = provenance["sha256"], sums(shipped)
    for path in sorted({*actual, *expected}):
        if actual.get(path) != expected.get(path):
            names.append(path)
    return names


def write_sentencepiece(path: Path, lines: Iterable[str], pieces: int) -> None:
    """A vocabulary with Llama's settings: byte-pair merges, bytes for what is unknown, no normalisation."""
    import sentencepiece

    model = io.BytesIO()  # given a file's name, it would write that name into the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=1.0,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())


def train_llama(section: dict[str, Any], training: dict[str, Any], batches: Iterator[Any]) -> Any:
    """transformers' LlamaForCausalLM of a `model` section, trained from random weights on pairs of tokens and labels,
    with the `seed`, `steps`, `warmup` and `learning_rate` of `training`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(training["seed"])
    config = LlamaConfig(
        vocab_size=section["vocab_size"],
        hidden_size=section["dim"],
        intermediate_size=section["ffn"],
        num_hidden_layers=section["layers"],
        num_attention_heads=section["heads"],
        num_key_value_heads=section["kv_heads"],
        max_position_embeddings=section["positions"],
        rms_norm_eps=section["norm_eps"],
        initializer_range=0.06,
        tie_word_embeddings=False,
        attn_implementation="eager",  # type: ignore[call-arg]  # of its base class
    )
    model, steps, rate = LlamaForCausalLM(config), training["steps"], training["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        tokens, labels = next(batches)
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / training["warmup"]) * (0.05 + 0.95 * cosine)
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1} of {steps}: loss {loss.item():.4f}", file=sys.stderr)
    return model


def write_llama_weights(folder: Path, case: str, model: Any, section: dict[str, Any], dtype: Any) -> None:
    """The weights in a type, prepared as every checkpoint is: through a Hugging Face folder."""
    from safetensors.torch import save_file

    from flagbench_cases.prepare.llama import convert
    from flagbench_cases.prepare.writer import Writer

    with tempfile.TemporaryDirectory() as source:
        state = {name: tensor.detach().to(dtype) for name, tensor in model.state_dict().items()}
        save_file(state, str(Path(source) / "model.safetensors"))
        (Path(source) / "config.json").write_text(json.dumps(convert.config_of(section)), encoding="utf-8")
        # Nothing finishes it, so there is no prepared.json: the shipped files have their sums in provenance.json.
        convert.convert(source, section, Writer(str(folder), case, "weights", None, None), lambda *_: None)
