"""Converts a Hugging Face checkpoint into the format llama-safetensors/v1, and checks that it is of the right model.

weights_format.py describes the format. `section` is the `model` section of a case's manifest in all functions.
"""

from __future__ import annotations

import json
import os
from typing import Any, Iterable, Iterator, Sequence

import torch

from flagbench_cases.prepare import weights
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report

MAX_FILE_BYTES = 4 * 2**30
"""The largest file to write, unless a single tensor is larger."""
TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that weights may have."""
FIXED_CONFIG = {"hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
"""Properties that all models of the family share. A config.json without one of these keys implies its value."""
DEFAULT_THETA = 10000.0
"""The base of the rotary embedding that a config.json without it implies."""
MODEL_REMEDY = "use a checkpoint of the published model"


def config_of(section: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json for a `model` section, readable by transformers 4 and 5."""
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    config.update(weights_format.sizes(section), **FIXED_CONFIG)
    config.update(max_position_embeddings=section["positions"], bos_token_id=1, eos_token_id=2, rope_scaling=None)
    return config


def check_config(folder: str, config: dict[str, Any], section: dict[str, Any], model_types: Sequence[str]) -> None:
    """Raise DataError if `config`, the config.json of a folder, is that of another model.

    The number of positions may differ, as rotary embeddings have no stored table.
    """
    # Without num_key_value_heads, every query head has its own key-value head.
    values = dict(FIXED_CONFIG, num_key_value_heads=config.get("num_attention_heads"))
    values.update({key: value for key, value in config.items() if value is not None})
    values["rope_theta"] = rope_theta(folder, config)
    model_type = values.get("model_type")
    if model_type not in model_types:
        model_type = model_types[0]
    wanted = dict(weights_format.sizes(section), model_type=model_type, **FIXED_CONFIG)
    weights_format.check_config(folder, values, wanted, section["name"])


def rope_theta(folder: str, config: dict[str, Any]) -> Any:
    """Return the base of the rotary embedding. Raises DataError for a scaled embedding.

    transformers 5 has it in `rope_parameters`, transformers 4 next to `rope_scaling`.
    """
    scalings = {}
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        if scaling is None:
            scaling = {}
        if not isinstance(scaling, dict):
            raise DataError(f"{folder}/config.json: {key} is {scaling!r}, not an object", MODEL_REMEDY)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            raise DataError(f"{folder}/config.json has a rotary embedding of type {kind!r}", MODEL_REMEDY)
        scalings[key] = scaling
    return scalings["rope_parameters"].get("rope_theta", config.get("rope_theta", DEFAULT_THETA))


def convert(
    source: str, section: dict[str, Any], writer: Writer, report: Report, model_types: Sequence[str] = ("llama",)
) -> None:
    """Convert a Hugging Face checkpoint folder through a Writer. Raises DataError if it is incomplete.

    `model_types`: the values that `model_type` in its config.json may have.
    """
    check_config(source, weights.read_config(source), section, model_types)
    files = weights.shard_files(source)
    sizes = [os.path.getsize(path) for path in files]
    write(source, _without_frequencies(weights.iter_tensors(source)), section, sizes, writer, report)
    for path in [os.path.join(source, "config.json")] + files:
        writer.source(path)


def _without_frequencies(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Skip the rotary frequencies in old checkpoints, since the model computes them."""
    for name, tensor in tensors:
        if not name.endswith(".rotary_emb.inv_freq"):
            yield name, tensor


def write(
    source: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    section: dict[str, Any],
    sizes: Sequence[int],
    writer: Writer,
    report: Report,
    padding: int = 0,
) -> None:
    """Write the tensors of a checkpoint, given with their Hugging Face names.

    Raises DataError unless they are exactly the tensors of the model and, if `padding` is not 0, the tensor
    weights_format.PADDING with that number of rows. `sizes`: the bytes of each shard of the source.

    At most one file of the result is in memory at a time. None is larger than half of the largest shard, since older
    versions of safetensors copy a file's tensors to write them.
    """
    model = weights_format.shapes(section)
    wanted = dict(model)
    if padding:
        wanted[weights_format.PADDING] = (padding, section["dim"])
    writer.need(sum(sizes))
    output = Output(writer, "weights", min(MAX_FILE_BYTES, max(sizes) // 2))
    dtypes = set()
    for name, tensor in tensors:
        check_tensor(source, name, tensor, wanted)
        if name in output.index:
            raise DataError(f"{source} has the tensor {name} twice", "download the checkpoint again")
        dtypes.add(str(tensor.dtype).replace("torch.", ""))
        output.add(name, tensor)
        report("convert the weights", len(output.index), len(wanted))
    missing = sorted(set(wanted) - set(output.index))
    if missing:
        raise DataError(
            f"{source} has no tensor {missing[0]} ({len(missing)} of {len(wanted)} are missing)",
            "download the complete checkpoint again",
        )
    output.flush()
    for name, content in (("index.json", output.index), ("config.json", config_of(section))):
        with open(writer.path(name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, sort_keys=True)
            file.write("\n")
    writer.format(weights_format.FORMAT)
    writer.fact(
        model=section["name"],
        tensors=len(model),
        parameters=sum(torch.Size(shape).numel() for shape in model.values()),
        dtypes=sorted(dtypes),
    )


def check_tensor(source: str, name: str, tensor: torch.Tensor, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raise DataError for a tensor that the model does not have, or with another shape or type.

    `wanted`: the shapes of the model's tensors by name.
    """
    if name not in wanted:
        raise DataError(
            f"{source} has a tensor {name}, which is not in this model", "use a checkpoint without additions"
        )
    if tuple(tensor.shape) != wanted[name]:
        raise DataError(
            f"{source}: {name} has the shape {tuple(tensor.shape)}, not {wanted[name]}",
            "use a checkpoint that matches its config.json",
        )
    if tensor.dtype not in TYPES:
        raise DataError(
            f"{source}: {name} is {tensor.dtype}", "use weights in fp32, fp16 or bf16, not quantised ones"
        )


class Output:
    """Writes tensors to files of at most `limit` bytes, or of a single tensor."""

    def __init__(self, writer: Writer, stem: str, limit: int) -> None:
        self.index: dict[str, str] = {}
        """The file of each tensor, by name."""
        self._writer = writer
        self._stem = stem
        self._limit = limit
        self._tensors: dict[str, torch.Tensor] = {}
        """The tensors of the current file, which is not written yet."""
        self._bytes = 0
        self._files: list[str] = []
        """The names of the files that have been written."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor to the current file; start a new file if it would become too large."""
        size = tensor.numel() * tensor.element_size()
        if self._tensors and self._bytes + size > self._limit:
            self.flush()
        # A copy: a view would keep the whole source shard in memory.
        self._tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
        self._bytes += size
        self.index[name] = self._file_name()

    def flush(self) -> None:
        """Write the current file."""
        from safetensors.torch import save_file

        name = self._file_name()
        save_file(self._tensors, self._writer.path(name), metadata={"format": "pt"})
        self._files.append(name)
        self._tensors = {}
        self._bytes = 0

    def _file_name(self) -> str:
        """Return the name of the current file."""
        return f"{self._stem}-{len(self._files) + 1:05d}.safetensors"
