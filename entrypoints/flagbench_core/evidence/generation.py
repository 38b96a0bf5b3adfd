"""What a batch of a case that generates tokens is: its lengths, and the memory that a device reads for each token.

A step of such a case is one batch through an engine such as vLLM, from the prompts to the last token. All prompts of
a batch have one length, and so have all outputs. The micro-batches of a step are the iterations of the engine: the
first reads the prompts and gives each sequence its first token, and each further one gives one more token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flagbench_core.evidence.columns import EvidenceError

BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""The bytes of a weight, an activation, or a number in the cache, by precision."""


class Generation(NamedTuple):
    """The lengths of a batch and what a device reads, the same in all steps of a run."""

    prompt: int
    """The tokens of each prompt."""
    output: int
    """The tokens that are generated for each prompt, which is the number of iterations of a step."""
    decode_bytes: float
    """The bytes of weights and cache that one device reads in an iteration after the first, as a mean over these."""


def generation_of(config: Mapping[str, Any]) -> Generation | None:
    """The generation that a configuration describes; None for a case that generates no tokens.

    Raises EvidenceError if a setting is missing or is no positive number, as a configuration in a record may be.
    """
    data = config.get("data")
    if not isinstance(data, Mapping) or "output_length" not in data:
        return None
    try:
        prompt, output = int(data["prompt_length"]), int(data["output_length"])
        batch = int(config["infer"]["batch_size"])
        tp = int(config["layout"]["tp"])
        decode_bytes = mean_decode_bytes(config["model"], config["precision"], batch, prompt, output, tp)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise EvidenceError(f"its configuration does not say what is generated: {error!r}") from None
    if min(prompt, output, batch) < 1:
        raise EvidenceError(f"its configuration generates {output} tokens after {prompt}, in batches of {batch}")
    return Generation(prompt, output, decode_bytes)


def mean_decode_bytes(
    model: Mapping[str, Any], precision: str, batch: int, prompt: int, output: int, tp: int
) -> float:
    """The bytes that one device reads in an iteration after the first, as a mean over these iterations.

    These are all weights that are multiplied, and the keys and values of all positions of the batch. Norms and the
    rows that are looked up in the table of embeddings are left out, below 0.01 % of the whole at the sizes of Llama.

    Args:
        model: the section `model` of a configuration of the Llama family.
        precision: that of weights and cache.
        batch: the number of sequences.
        prompt: the tokens of each prompt.
        output: the tokens that each sequence generates.
        tp: the number of devices that share each layer and the output layer.
    """
    dim, head_dim = model["dim"], model["dim"] // model["heads"]
    query_width, kv_width = dim / tp, head_dim * model["kv_heads"] / tp
    ffn, vocabulary = model["ffn"] / tp, model["vocab_size"] / tp
    layer_weights = dim * (2 * query_width + 2 * kv_width + 3 * ffn)
    weights = model["layers"] * layer_weights + dim * vocabulary
    # The t-th of these iterations reads prompt + t positions: t = 1 to output - 1, on average output / 2.
    positions = batch * (prompt + output / 2)
    cache = model["layers"] * 2 * kv_width * positions
    return float(BYTES[precision] * (weights + cache))
