"""Which part of each tensor a rank holds: from Hugging Face's names and layout to Megatron-Core's.

Megatron-Core's parameters are rows of several tensors one after another: for each key-value head its queries, its key
and its value (`linear_qkv`), and the gate above the input of the SwiGLU (`linear_fc1`). Tensor-parallel ranks share
the rows of these, and the columns of `linear_proj` and `linear_fc2`.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch

from flagbench_cases.engines.megatron.shape import LEARNED, Shape
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.shared.parallel_layout import Coordinates, Layout

Range = Tuple[int, int]


class Piece(NamedTuple):
    """Rows and columns of a tensor by its Hugging Face name; None: all of them."""

    name: str
    rows: Range | None = None
    columns: Range | None = None

    def slice_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This piece of a whole tensor, or of what reads one with `[...]`."""
        rows = slice(*self.rows) if self.rows else slice(None)
        if self.columns:
            return tensor[rows, slice(*self.columns)]
        return tensor[rows]


Parts = Dict[str, List[Piece]]


def parts_of(
    shape: Shape, layout: Layout, at: Coordinates, padding: str = "zeros", joined_norms: bool = False
) -> Parts:
    """The pieces, top to bottom, of each parameter of the rank at these coordinates.

    `joined_norms`: the linear layers after the norms have their weights, as in Transformer Engine.

    `padding`: the rows of the output layer that pad the vocabulary, as each takes part in every softmax: `zeros`,
    `last_row` repeated, or those of the `checkpoint`.
    """
    parts: Parts = {}
    low, high = _share(shape.padded_vocabulary(layout.tp), layout.tp, at.tp)
    size = shape.vocab_size
    rows, extra = (min(low, size), min(high, size)), (max(low - size, 0), max(high - size, 0))
    if at.pp == 0:
        parts["embedding.word_embeddings.weight"] = [Piece("model.embed_tokens.weight", rows)]
        if shape.position_embedding == LEARNED:
            parts["embedding.position_embeddings.weight"] = [Piece(weights_format.POSITIONS)]
    count = shape.layers // layout.pp
    for index in range(count):
        for name, pieces in _layer(shape, layout.tp, at.tp, index, at.pp * count + index):
            if joined_norms:
                name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
                name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
            parts[name] = pieces
    if at.pp == layout.pp - 1:
        parts["decoder.final_layernorm.weight"] = [Piece("model.norm.weight")]
        if shape.tied and layout.pp > 1:  # a copy of the first stage's
            parts["output_layer.weight"] = [Piece("model.embed_tokens.weight", rows)]
    if at.pp == layout.pp - 1 and not shape.tied:
        output_rows = [Piece("lm_head.weight", rows)]
        if padding == "last_row":
            output_rows += [Piece("lm_head.weight", (size - 1, size))] * (extra[1] - extra[0])
        elif padding == "checkpoint" and extra[1] > extra[0]:
            output_rows.append(Piece(weights_format.PADDING, extra))
        parts["output_layer.weight"] = output_rows
    return parts


def _layer(shape: Shape, tp: int, rank: int, index: int, number: int) -> Iterator[tuple[str, list[Piece]]]:
    megatron, hugging_face = f"decoder.layers.{index}.", f"model.layers.{number}."
    per_group, width = shape.heads // shape.kv_heads * shape.head_dim, shape.head_dim
    heads = []
    for group in range(*_share(shape.kv_heads, tp, rank)):
        heads.append(Piece(hugging_face + "self_attn.q_proj.weight", (group * per_group, (group + 1) * per_group)))
        heads.append(Piece(hugging_face + "self_attn.k_proj.weight", (group * width, (group + 1) * width)))
        heads.append(Piece(hugging_face + "self_attn.v_proj.weight", (group * width, (group + 1) * width)))
    dim, ffn = _share(shape.dim, tp, rank), _share(shape.ffn, tp, rank)
    yield megatron + "input_layernorm.weight", [Piece(hugging_face + "input_layernorm.weight")]
    yield megatron + "self_attention.linear_qkv.weight", heads
    yield megatron + "self_attention.linear_proj.weight", [Piece(hugging_face + "self_attn.o_proj.weight", None, dim)]
    yield megatron + "pre_mlp_layernorm.weight", [Piece(hugging_face + "post_attention_layernorm.weight")]
    halves = [Piece(hugging_face + "mlp.gate_proj.weight", ffn), Piece(hugging_face + "mlp.up_proj.weight", ffn)]
    yield megatron + "mlp.linear_fc1.weight", halves
    yield megatron + "mlp.linear_fc2.weight", [Piece(hugging_face + "mlp.down_proj.weight", None, ffn)]
    if shape.bias:

        def bias(piece: Piece) -> Piece:
            return Piece(piece.name.replace(".weight", ".bias"), piece.rows)

        yield megatron + "self_attention.linear_qkv.bias", [bias(head) for head in heads]
        yield megatron + "self_attention.linear_proj.bias", [Piece(hugging_face + "self_attn.o_proj.bias")]
        yield megatron + "mlp.linear_fc1.bias", [bias(half) for half in halves]
        yield megatron + "mlp.linear_fc2.bias", [Piece(hugging_face + "mlp.down_proj.bias")]


def _share(size: int, ranks: int, rank: int) -> Range:
    return rank * size // ranks, (rank + 1) * size // ranks


def fill(
    module: torch.nn.Module, parts: Parts, read: Callable[[list[str]], Iterator[tuple[str, torch.Tensor]]]
) -> None:
    """Fill a rank's parameters. `read` gives tensors, whole or readable in parts, by name in any order.

    Rows without a piece, which pad the vocabulary, become zero.
    """
    parameters = dict(module.named_parameters())
    assert set(parameters) == set(parts), sorted(set(parameters) ^ set(parts))
    targets: dict[str, list[tuple[torch.Tensor, Piece]]] = {}
    with torch.no_grad():
        for name, pieces in parts.items():
            at = 0
            for piece in pieces:
                count = parameters[name].shape[0]
                if piece.rows is not None:
                    count = piece.rows[1] - piece.rows[0]
                if count:
                    targets.setdefault(piece.name, []).append((parameters[name][at : at + count], piece))
                at += count
            parameters[name][at:].zero_()
        for name, tensor in read(sorted(targets)):
            for target, piece in targets[name]:
                target.copy_(piece.slice_of(tensor))


OUTPUT_PROJECTIONS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def random_tensors(
    shape: Shape,
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    device: torch.device,
    beat: Callable[[], None],
    scaled: bool = False,
) -> Callable[[list[str]], Iterator[tuple[str, torch.Tensor]]]:
    """A `read` for `fill`: normal matrices, constant norms and biases of 0, the same for every layout.

    `scaled`: the two matrices of a layer whose outputs are added to the residual stream are smaller by the square
    root of the number of these sums, 2 x layers, as Megatron-LM initialises a model that it trains.
    Each tensor is drawn whole, in fp32, by a generator of its own; one is in memory at a time.
    """
    smaller = shape.initializer_range / (2 * shape.layers) ** 0.5
    numbers = {name: index for index, name in enumerate(sorted(shapes))}

    def read(names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            tensor = torch.empty(shapes[name], dtype=torch.float32, device=device)
            if name.endswith(".bias") and tensor.dim() == 1:
                tensor.fill_(0.0)
            elif tensor.dim() == 1:
                tensor.fill_(shape.norm_init)
            else:
                generator = torch.Generator(device=device).manual_seed(seed * 2**20 + numbers[name])
                deviation = shape.initializer_range
                if scaled and name.endswith(OUTPUT_PROJECTIONS):
                    deviation = smaller
                tensor.normal_(std=deviation, generator=generator)
            beat()
            yield name, tensor

    return read
