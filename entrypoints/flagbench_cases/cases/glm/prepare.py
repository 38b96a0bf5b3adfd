"""`flagbench prepare glm`: converts published or raw ReCoRD and the published checkpoint into prepared folders.

`flagbench prepare` imports this module by the name of the case (prepare/child_main.py), and uses its WANTS, LICENCES,
prepare_data and prepare_weights.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from flagbench_cases.cases.glm import dataset_text, sparse_hdf5
from flagbench_cases.cases.glm.data import EXPECTED, HDF5_FORM, JSONL_FORM, condition_of
from flagbench_cases.cases.glm.ragged import CONTEXT_OF_CHOICE, FORMAT, Builder, choice_lengths, save
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.prepare import pickles
from flagbench_cases.prepare.wordpiece import read_vocabulary
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import Report

WANTS = {
    "data": "the unpacked glm_train_dataset (ReCoRD/glm_train_eval_hdf5_sparse), or SuperGLUE's ReCoRD folder with "
    "train.jsonl and val.jsonl",
    "weights": "blocklm-large-blank/200000/mp_rank_00_model_states.pt of the same archive, or its folder",
    "vocabulary": "vocab.txt of bert-large-uncased; needed for train.jsonl and val.jsonl, and with the HDF5 for F1 "
    "over words",
}
"""What each option of `flagbench prepare` takes; a case supports no other options."""
ARCHIVE = "the archive is on BAAI's model hub, behind a login"
LICENCES = {
    "data": "ReCoRD is based on CNN and Daily Mail articles; whether it may be redistributed is unclear",
    "weights": f"the checkpoint's licence is not stated; GLM's code is MIT; {ARCHIVE}",
    "vocabulary": "Apache-2.0, as bert-large-uncased",
}
"""The licence of each source, by option. They are written into the prepared folders."""
WEIGHTS_FORMAT = "glm-safetensors/v1"
CHECKPOINT = "mp_rank_00_model_states.pt"
VOCABULARY_LINES = 30522
"""Lines of bert-large-uncased's vocab.txt; GLM adds two tokens after them."""
HDF5 = {"train": "train_hdf5/train_sparse.hdf5", "eval": "eval_hdf5/eval_sparse.hdf5"}
"""The published files of the two sets."""
JSONL = {"train": "train.jsonl", "eval": "val.jsonl"}
"""SuperGLUE's files of the two sets."""
DATA_FOLDERS = ("", "ReCoRD", "glm_train_eval_hdf5_sparse", "ReCoRD/glm_train_eval_hdf5_sparse")
"""Where the sets may be in the folder given as --data."""
CHECKPOINT_FOLDERS = ("", "200000", "blocklm-large-blank/200000")
"""Where the checkpoint may be in the folder given as --weights."""
NPY_HEADER_BYTES = 128
"""The size of a .npy file in addition to its array."""
SAFETENSORS_HEADER_BYTES = 2**16
"""More than the size of model.safetensors in addition to its tensors."""


class DataFiles(NamedTuple):
    """The files of the training and the evaluation set."""

    paths: dict[str, str]
    """The path of each set, `train` and `eval`."""
    published: bool
    """Whether they are the published HDF5, rather than text."""


def prepare_data(source: str, vocabulary: str | None, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Convert both sets of `source` into `glm-cloze/v1` for a preset. Raises DataError."""
    paths, published = find_data(source)
    length = preset["data"]["sequence_length"]
    special = SpecialTokens()
    words = None
    if vocabulary is not None:
        words = published_vocabulary(vocabulary)
    if words is None and not published:
        raise UsageError(
            f"{paths['train']} needs a WordPiece vocabulary",
            "set --vocabulary to the vocab.txt of bert-large-uncased",
        )
    counts, sets = {}, {}
    for split, path in paths.items():
        writer.source(path)
        builder = Builder()
        if published:
            counts[split] = sparse_hdf5.build(path, split == "train", special, length, builder, report, words)
        else:
            counts[split] = dataset_text.build(path, split == "train", words or {}, length, builder, report)
        sets[split] = builder.arrays()
    if vocabulary is not None:
        writer.source(vocabulary)
    needed_bytes = 0
    for arrays in sets.values():
        needed_bytes += sum(array.nbytes + NPY_HEADER_BYTES for array in arrays.values())
    writer.need(needed_bytes)
    for split, arrays in sets.items():
        save(split, arrays, writer.path)
    writer.format(FORMAT)
    if published:
        writer.licence(ARCHIVE)
    form = HDF5_FORM if published else JSONL_FORM
    f1_over = "wordpieces" if words is None else "words"
    examples = {split: numbers.examples for split, numbers in counts.items()}
    fewest, most = EXPECTED[form]["train"]
    writer.fact(
        form=form,
        sequence_length=length,
        special=special._asdict(),
        f1_over=f1_over,
        data_condition=condition_of(form, examples),
        examples_expected=f"train {fewest} to {most}, eval {EXPECTED[form]['eval'][0]}",
        examples_found=f"train {examples['train']}, eval {examples['eval']}",
    )
    for split, numbers in counts.items():
        # In the published files, passages are truncated already, and it is not known which.
        truncated = None if published else numbers.truncated
        writer.fact(**{split: _facts_of_set(numbers, sets[split], truncated)})


def _facts_of_set(
    counts: dataset_text.Counts, arrays: dict[str, np.ndarray], truncated: int | None
) -> dict[str, Any]:
    """Return facts about a set: sizes, and the number of choices whose passage was truncated, if known."""
    choices = np.diff(arrays["example_starts"])
    lengths = choice_lengths(arrays)
    return {
        "examples": counts.examples,
        "choices": len(arrays[CONTEXT_OF_CHOICE]),
        "mean_choices": round(float(choices.mean()), 3),
        "most_choices": int(choices.max()),
        "mean_length": round(float(lengths.mean()), 2),
        "choices_with_cut_passage": truncated,
        "examples_without_right_choice": counts.unanswerable,
    }


def find_data(source: str) -> DataFiles:
    """Find the files of both sets in the folder `source`. Raises DataError."""
    if not os.path.isdir(source):
        raise DataError(f"there is no folder {source}", f"set --data to {WANTS['data']}")
    for names, published in ((HDF5, True), (JSONL, False)):
        for folder in DATA_FOLDERS:
            paths = {split: os.path.join(source, folder, name) for split, name in names.items()}
            missing = [path for path in paths.values() if not os.path.exists(path)]
            if not missing:
                return DataFiles(paths, published)
            if len(missing) < len(paths):
                raise DataError(f"{missing[0]} does not exist", "both sets are needed")
    raise DataError(f"{source} has neither {HDF5['train']} nor {JSONL['train']}", f"set --data to {WANTS['data']}")


def published_vocabulary(path: str) -> dict[str, int]:
    """Read the vocabulary that the checkpoint was trained with. Raises DataError for a different one."""
    words = read_vocabulary(path, dataset_text.SPECIAL_TOKENS)
    if len(words) != VOCABULARY_LINES:  # tokens are distinct, so there is one for each line
        raise DataError(
            f"{path} has {len(words)} tokens, not {VOCABULARY_LINES}",
            "use the vocab.txt of bert-large-uncased",
        )
    if dataset_text.special_tokens(words) != SpecialTokens():
        raise DataError(
            f"{path} has different ids for its special tokens", "use the unmodified vocab.txt of bert-large-uncased"
        )
    return words


def prepare_weights(source: str, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Convert a checkpoint of a preset's model into model.safetensors, values unchanged. Raises DataError."""
    from safetensors.torch import save_file

    path = find_checkpoint(source)
    writer.source(path)
    state = pickles.read_table(path, inside=("module",))
    shapes = expected_shapes(preset["model"])
    check_state(path, state, shapes)
    tensors = {}
    for done, name in enumerate(shapes, start=1):
        # Copied, since safetensors cannot store tensors that share memory.
        tensors[name] = state[name].detach().clone().contiguous()
        report("tensors", done, len(shapes))
    tensor_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    writer.need(tensor_bytes + SAFETENSORS_HEADER_BYTES)
    save_file(tensors, writer.path("model.safetensors"), metadata={"format": "pt"})
    writer.format(WEIGHTS_FORMAT)
    writer.fact(
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        dtypes=sorted({str(tensor.dtype).replace("torch.", "") for tensor in tensors.values()}),
        left_out=sorted(set(state) - set(shapes)),
    )


def find_checkpoint(source: str) -> str:
    """Return `source` if it is a file, else the checkpoint file in this folder. Raises DataError."""
    if os.path.isfile(source):
        return source
    for folder in CHECKPOINT_FOLDERS:
        path = os.path.join(source, folder, CHECKPOINT)
        if os.path.isfile(path):
            return path
    raise DataError(f"{source} has no {CHECKPOINT}", f"set --weights to {WANTS['weights']}")


def expected_shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors by name, in the published checkpoint and in prepared weights."""
    dim = model["dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "word_embeddings.weight": (model["vocab_size"], dim),
        "transformer.position_embeddings.weight": (model["positions"], dim),
        "transformer.block_position_embeddings.weight": (model["positions"], dim),
    }
    for layer in range(model["layers"]):
        for name, shape in (
            ("input_layernorm", (dim,)),
            ("attention.query_key_value", (3 * dim, dim)),
            ("attention.dense", (dim, dim)),
            ("post_attention_layernorm", (dim,)),
            ("mlp.dense_h_to_4h", (4 * dim, dim)),
            ("mlp.dense_4h_to_h", (dim, 4 * dim)),
        ):
            shapes[f"transformer.layers.{layer}.{name}.weight"] = shape
            shapes[f"transformer.layers.{layer}.{name}.bias"] = shape[:1]
    shapes["transformer.final_layernorm.weight"] = shapes["transformer.final_layernorm.bias"] = (dim,)
    return shapes


def check_state(path: str, state: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise DataError if a tensor of `state` is missing, has a different shape or is not floating point."""
    remedy = "use the checkpoint blocklm-large-blank that was published for this case"
    missing: list[str] = [name for name in shapes if name not in state]
    if missing:
        raise DataError(f"{path} has no tensor {missing[0]} ({len(missing)} are missing)", remedy)
    for name, shape in shapes.items():
        saved = tuple(state[name].shape)
        if name == "word_embeddings.weight" and saved[1:] == shape[1:] and saved != shape:
            raise DataError(f"{path} has a vocabulary of {saved[0]} tokens, not {shape[0]}", remedy)
        if saved != shape:
            raise DataError(f"{path}: {name} has the shape {saved}, not {shape}", remedy)
        if not state[name].is_floating_point():
            raise DataError(f"{path}: {name} holds {state[name].dtype}", remedy)
