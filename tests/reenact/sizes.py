"""Sizes at which a step takes one or two tenths of a second on one core: two layers, of DistilBERT at the published
width, and one of Aquila.

Batches, sequences and vocabularies that are only looked up are shorter than published.
Loading has no process of its own here, so that it is counted, and Llama's monitor of the memory, which never pauses,
is left out: it would take the time of the other side.
"""

from typing import Any, Dict

# The longest comparisons first, so that none is left alone at the end.
SMALL: Dict[str, Dict[str, Any]] = {
    # As one of four ranks has it: two groups of queries, a quarter of the width, and heads as wide as published. One
    # layer, so that its products take long enough beside what Python does for a layer; and of the vocabulary, whose
    # logits are copied, about as much for a layer as published.
    "aquila-33b": {
        "model": {"layers": 1, "dim": 1536, "heads": 12, "kv_heads": 2, "ffn": 6144, "vocab_size": 256},
        "data": {"sequence_length": 768, "examples": 4096, "workers": 0},
    },
    # As one of eight ranks has it, at half of its width: a group of eight queries, and all ratios of the published
    # widths.
    "llama2-70b": {
        "model": {"layers": 2, "dim": 512, "heads": 8, "kv_heads": 1, "ffn": 1792, "vocab_size": 2048},
        "data": {"sequence_length": 256},
        "train": {"batch_size": 1},
    },
    # An eighth of the published widths, in two groups of four queries.
    "llama3-8b": {
        "model": {
            **{"layers": 2, "dim": 512, "heads": 8, "kv_heads": 2, "ffn": 1792},
            **{"vocab_size": 2048, "positions": 256},
        },
        "data": {"sequence_length": 256},
        "train": {"batch_size": 1},
    },
    "distilbert": {
        "model": {"layers": 2, "vocab_size": 2048},
        "data": {"sequence_length": 64, "train_examples": 4096, "eval_examples": 8, "workers": 0},
        "train": {"batch_size": 1},
    },
    "glm": {
        "model": {"layers": 2, "vocab_size": 2048, "dim": 512, "heads": 8},
        "data": {
            **{"sequence_length": 64, "train_examples": 4096, "eval_examples": 4, "workers": 0},
            "synthetic": {"mean_context": 30, "min_context": 16, "mean_choices": 2, "max_choices": 2},
        },
        "train": {"batch_size": 1},
    },
    # All of the vocabulary, whose logits are the largest tensors of a step, and an eighth of the published width.
    "llama2-7b-lora": {
        "model": {"layers": 2, "dim": 512, "heads": 4, "kv_heads": 4, "ffn": 1376},
        "data": {"sequence_length": 32, "train_blocks": 4096, "validation_blocks": 1, "mmlu_items": 0, "workers": 0},
        "train": {"batch_size": 1, "memory_monitor": False},
    },
}

# What else is changed where steps are timed.
TIMED: Dict[str, Dict[str, Any]] = {
    # What Python does for a step does not depend on its tokens; on processors with matrix units for bf16, it is more
    # than a percent of a shorter one.
    "aquila-33b": {"data": {"sequence_length": 1152}},
    # Of the 44 and 128 published micro-batches, one is counted, so that what is done once in a step is seen; beside
    # so little else, what ours does not repeat would be several percent of its time.
    "llama2-70b": {"train": {"batch_size": 4}},
    "llama3-8b": {"train": {"batch_size": 2}},
}
