"""`flagbench prepare glm`: converts published or raw ReCoRD and the published checkpoint into prepared folders."""

import os
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from flagbench_cases.cases.glm import dataset_text, sparse_hdf5
from flagbench_cases.cases.glm.data import EXPECTED, HDF5_FORM, JSONL_FORM, condition_of
from flagbench_cases.cases.glm.ragged import FORMAT, Builder, Special, save
from flagbench_cases.prepare import pickles
from flagbench_cases.prepare.wordpiece import read_vocabulary
from flagbench_cases.shared.errors import DataError, UsageError

WANTS = {
    "data": "the unpacked glm_train_dataset (ReCoRD/glm_train_eval_hdf5_sparse), or SuperGLUE's ReCoRD folder with "
    "train.jsonl and val.jsonl",
    "weights": "blocklm-large-blank/200000/mp_rank_00_model_states.pt of the same archive, or its folder",
    "vocabulary": "vocab.txt of bert-large-uncased; needed for train.jsonl and val.jsonl, and with the HDF5 for F1 "
    "over words",
}
ARCHIVE = "the archive is on BAAI's model hub, behind a login"
LICENCES = {
    "data": "ReCoRD is based on CNN and Daily Mail articles; whether it may be redistributed is unclear",
    "weights": "the checkpoint's licence is not stated; GLM's code is MIT; %s" % ARCHIVE,
    "vocabulary": "Apache-2.0, as bert-large-uncased",
}
WEIGHTS_FORMAT = "glm-safetensors/v1"
CHECKPOINT = "mp_rank_00_model_states.pt"
# Lines of bert-large-uncased's vocab.txt; GLM adds two tokens after them.
VOCABULARY_LINES = 30522
HDF5 = {"train": "train_hdf5/train_sparse.hdf5", "eval": "eval_hdf5/eval_sparse.hdf5"}
JSONL = {"train": "train.jsonl", "eval": "val.jsonl"}
DATA_FOLDERS = ("", "ReCoRD", "glm_train_eval_hdf5_sparse", "ReCoRD/glm_train_eval_hdf5_sparse")
CHECKPOINT_FOLDERS = ("", "200000", "blocklm-large-blank/200000")

Report = Callable[[str, int, int], None]


def prepare_data(source: str, vocabulary: Optional[str], preset: Dict[str, Any], writer: Any, report: Report) -> None:
    """Convert both sets of `source` into `glm-cloze/v1` for a preset. Raises DataError."""
    paths, published = find_data(source)
    length = preset["data"]["sequence_length"]
    words = None if vocabulary is None else published_vocabulary(vocabulary)
    if words is None and not published:
        raise UsageError(
            "%s needs a WordPiece vocabulary" % paths["train"],
            "set --vocabulary to the vocab.txt of bert-large-uncased",
        )
    counts, sets = {}, {}
    for split, path in paths.items():
        writer.source(path)
        builder = Builder()
        if published:
            found = sparse_hdf5.build(path, split == "train", Special(), length, builder, report, words)
        else:
            found = dataset_text.build(path, split == "train", words or {}, length, builder, report)
        counts[split], sets[split] = found, builder.arrays()
    if vocabulary is not None:
        writer.source(vocabulary)
    writer.need(sum(array.nbytes + 128 for arrays in sets.values() for array in arrays.values()))
    for split, arrays in sets.items():
        save(split, arrays, writer.path)
    writer.format(FORMAT)
    if published:
        writer.licence(ARCHIVE)
    form = HDF5_FORM if published else JSONL_FORM
    examples = {split: found.examples for split, found in counts.items()}
    writer.fact(
        form=form,
        sequence_length=length,
        special=Special()._asdict(),
        f1_over="wordpieces" if words is None else "words",
        data_condition=condition_of(form, examples),
        examples_expected="train %d to %d, eval %d" % (*EXPECTED[form]["train"], EXPECTED[form]["eval"][0]),
        examples_found="train %(train)d, eval %(eval)d" % examples,
    )
    for split, found in counts.items():
        writer.fact(**{split: _facts(found, sets[split], known_cuts=not published)})


def _facts(counts: dataset_text.Counts, arrays: Dict[str, np.ndarray], known_cuts: bool) -> Dict[str, Any]:
    """Facts about a set: sizes, and how many passages were truncated, if known."""
    choices = np.diff(arrays["example_starts"])
    lengths = np.diff(arrays["context_starts"])[arrays["rows"]] + np.diff(arrays["answer_starts"]) + 1
    return {
        "examples": counts.examples,
        "choices": len(arrays["rows"]),
        "mean_choices": round(float(choices.mean()), 3),
        "most_choices": int(choices.max()),
        "mean_length": round(float(lengths.mean()), 2),
        "choices_with_cut_passage": counts.truncated if known_cuts else None,
        "examples_without_right_choice": counts.unanswerable,
    }


def find_data(source: str) -> Tuple[Dict[str, str], bool]:
    """The files of both sets in `source`, and whether they are the published HDF5. Raises DataError."""
    if not os.path.isdir(source):
        raise DataError("there is no folder %s" % source, "set --data to %s" % WANTS["data"])
    for names, published in ((HDF5, True), (JSONL, False)):
        for folder in DATA_FOLDERS:
            paths = {split: os.path.join(source, folder, name) for split, name in names.items()}
            there = [path for path in paths.values() if os.path.exists(path)]
            if there:
                missing = [path for path in paths.values() if path not in there]
                if missing:
                    raise DataError("%s does not exist" % missing[0], "both sets are needed")
                return paths, published
    raise DataError(
        "%s has neither %s nor %s" % (source, HDF5["train"], JSONL["train"]), "set --data to %s" % WANTS["data"]
    )


def published_vocabulary(path: str) -> Dict[str, int]:
    """Read the vocabulary that the checkpoint was trained with. Raises DataError for a different one."""
    words = read_vocabulary(path, dataset_text.SPECIAL_TOKENS)
    if len(words) != VOCABULARY_LINES:  # its tokens are distinct: as many as its lines
        raise DataError(
            "%s has %d tokens, not %d" % (path, len(words), VOCABULARY_LINES),
            "use the vocab.txt of bert-large-uncased",
        )
    if dataset_text.special_tokens(words) != Special():
        raise DataError(
            "%s has different ids for its special tokens" % path, "use the unmodified vocab.txt of bert-large-uncased"
        )
    return words


def prepare_weights(source: str, preset: Dict[str, Any], writer: Any, report: Report) -> None:
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
    writer.need(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + 2**16)
    save_file(tensors, writer.path("model.safetensors"), metadata={"format": "pt"})
    writer.format(WEIGHTS_FORMAT)
    writer.fact(
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        dtypes=sorted({str(tensor.dtype).replace("torch.", "") for tensor in tensors.values()}),
        left_out=sorted(set(state) - set(shapes)),
    )


def find_checkpoint(source: str) -> str:
    """The checkpoint file that `source` is or holds. Raises DataError."""
    if os.path.isfile(source):
        return source
    for folder in CHECKPOINT_FOLDERS:
        path = os.path.join(source, folder, CHECKPOINT)
        if os.path.isfile(path):
            return path
    raise DataError("%s has no %s" % (source, CHECKPOINT), "set --weights to %s" % WANTS["weights"])


def expected_shapes(model: Dict[str, Any]) -> Dict[str, Tuple[int, ...]]:
    """Names and shapes of the tensors of a model, in the published checkpoint and in prepared weights."""
    dim = model["dim"]
    shapes: Dict[str, Tuple[int, ...]] = {
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
            shapes["transformer.layers.%d.%s.weight" % (layer, name)] = shape
            shapes["transformer.layers.%d.%s.bias" % (layer, name)] = shape[:1]
    shapes["transformer.final_layernorm.weight"] = shapes["transformer.final_layernorm.bias"] = (dim,)
    return shapes


def check_state(path: str, state: Dict[str, Any], shapes: Dict[str, Tuple[int, ...]]) -> None:
    """Raise DataError if a tensor is missing, has a different shape or is not floating point."""
    remedy = "use the checkpoint blocklm-large-blank that was published for this case"
    missing: List[str] = [name for name in shapes if name not in state]
    if missing:
        raise DataError("%s has no tensor %s (%d are missing)" % (path, missing[0], len(missing)), remedy)
    for name, shape in shapes.items():
        found = tuple(state[name].shape)
        if name == "word_embeddings.weight" and found[1:] == shape[1:] and found != shape:
            raise DataError("%s has a vocabulary of %d tokens, not %d" % (path, found[0], shape[0]), remedy)
        if found != shape:
            raise DataError("%s: %s has the shape %s, not %s" % (path, name, found, shape), remedy)
        if not state[name].is_floating_point():
            raise DataError("%s: %s holds %s" % (path, name, state[name].dtype), remedy)
